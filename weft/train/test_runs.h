#pragma once
// For tests of training: a model of 2 layers with the shipped tokenizer, 16 arithmetic prompts, small recipes, and what a run
// leaves. Everything lies in temporary directories that end with the process or the fixture.

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/log.h"
#include "weft/base/signals.h"
#include "weft/base/threads.h"
#include "weft/io/test_files.h"
#include "weft/kernels/target.h"
#include "weft/train/loaded_model.h"
#include "weft/train/recipe.h"
#include "weft/train/registry.h"

namespace weft {

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

// The configuration of models/tiny-moe, scaled down; `change` edits it.
inline nlohmann::ordered_json tiny_config(const std::function<void(nlohmann::ordered_json&)>& change = {}) {
  auto c = nlohmann::ordered_json::parse(read_bytes(std::string(WEFT_SOURCE_DIR) + "/models/tiny-moe/config.json"));
  c["dtype"] = "float32";
  c["num_hidden_layers"] = 2;
  c["hidden_size"] = 32;
  c["intermediate_size"] = 48;
  c["num_attention_heads"] = 4;
  c["num_key_value_heads"] = 2;
  c["head_dim"] = 8;
  c["num_experts"] = 4;
  c["moe_intermediate_size"] = 16;
  if (change) change(c);
  return c;
}

// Writes a checkpoint with the shipped tokenizer and random weights that are far from uniform.
inline void write_tiny_model(const std::string& dir, const std::function<void(nlohmann::ordered_json&)>& change = {},
                             uint64_t seed = 5) {
  namespace fs = std::filesystem;
  const TemporaryDirectory source;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
    fs::copy_file(std::string(WEFT_SOURCE_DIR) + "/models/tiny-moe/" + name, source.file(name));
  source.write("config.json", tiny_config(change).dump(2));
  LoadedModel m = create_model(source.path(), DType::kF32, DType::kF32, seed);
  for (nn::Parameter* p : m.model->parameters()) {
    const at::NoGradGuard guard;
    if (p->dim() > 1) p->master().mul_(5.0);
    p->updated();
  }
  fs::create_directories(dir);
  save_model(m, dir);
}

// One for all tests of a program; tests never write into it.
inline const std::string& tiny_model() {
  static const TemporaryDirectory dir;
  static const std::string path = [] {
    write_tiny_model(dir.file("model"));
    return dir.file("model");
  }();
  return path;
}

inline std::string arithmetic_rows(int count, int first = 0) {
  std::string out;
  for (int i = first; i < first + count; ++i) {
    const int a = (i * 37 + 11) % 90, b = (i * 53 + 7) % 90;
    out += fmt::format("{{\"prompt\": \"{}+{}=\", \"completion\": \"{}\", \"answer\": \"{}\", \"data_source\": \"{}\"}}\n", a, b,
                       a + b, a + b, i % 2 ? "odd" : "even");
  }
  return out;
}

struct OneThreadCount {
  explicit OneThreadCount(int n) { set_num_threads(n); }
  ~OneThreadCount() { set_num_threads(0); }
};

struct OneTarget {
  explicit OneTarget(kernels::Target t) : before(kernels::active_target()) { kernels::force_target(t); }
  ~OneTarget() { kernels::force_target(before); }
  kernels::Target before;
};

inline RewardValue reward_value(double value) {
  RewardValue v;
  v.value = value;
  return v;
}

// A reward of the test's own.
class TestReward : public RewardFunction {
 public:
  using Score = std::function<RewardValue(const RewardRequest&)>;
  TestReward(std::string name, Score score) : name_(std::move(name)), score_(std::move(score)) {}
  std::string name() const override { return name_; }
  std::vector<RewardValue> score(std::span<const RewardRequest> requests) override {
    std::vector<RewardValue> out;
    for (const RewardRequest& r : requests) out.push_back(score_(r));
    return out;
  }

 private:
  std::string name_;
  Score score_;
};

// Differs within nearly every group: the share of even digits.
inline RewardValue even_digits(const RewardRequest& r) {
  double even = 0;
  for (char c : r.completion) even += c >= '0' && c <= '9' && (c - '0') % 2 == 0;
  return reward_value(even / (1.0 + static_cast<double>(r.completion.size())));
}

class RunTest : public ::testing::Test {
 protected:
  RunTest() {
    set_log_level(LogLevel::kQuiet);
    clear_stop_request();
    dir_.write("train.jsonl", arithmetic_rows(16));
    dir_.write("val.jsonl", arithmetic_rows(6, 100));
    add_reward("test", even_digits);
  }
  ~RunTest() override {
    clear_stop_request();
    set_log_level(LogLevel::kInfo);
  }

  void add_reward(const std::string& name, TestReward::Score score) {
    registry_.rewards.add(name, [name, score](const std::string&) { return std::make_unique<TestReward>(name, score); });
  }

  // The smallest recipe, small overrides, then the test's.
  Recipe recipe(const std::string& run, const std::vector<std::string>& more = {}, RecipeUse use = RecipeUse::kTrain) const {
    const std::string toml = fmt::format("[model]\npath = \"{}\"\n[data]\ntrain_files = [\"{}\"]\n[reward]\nfuncs = [\"test\"]\n",
                                         tiny_model(), dir_.file("train.jsonl"));
    std::vector<std::string> overrides = {"data.train_batch_size=4",
                                          "data.max_prompt_length=16",
                                          "data.max_response_length=5",
                                          "rollout.n=3",
                                          "actor.optim.lr=0.01",
                                          "trainer.logger=console",
                                          "trainer.save_samples=false",
                                          "trainer.threads=1",
                                          "trainer.runs_dir=" + dir_.file("runs"),
                                          "trainer.run_name=" + run};
    overrides.insert(overrides.end(), more.begin(), more.end());
    RecipeChoices choices;
    for (const auto& [name, loss] : registry_.policy_losses) choices.loss_modes.push_back(name);
    return parse_recipe(toml, "test.toml", overrides, use, choices);
  }

  std::string run_file(const std::string& run, const std::string& name) const { return dir_.file("runs/" + run + "/" + name); }
  std::string state_file(const std::string& run, int64_t step, const std::string& name) const {
    return run_file(run, fmt::format("checkpoints/global_step_{}/state/{}", step, name));
  }

  // Rows of metrics.jsonl without clocks, rates and (unless asked for) bytes between ranks and in memory, of which a run that goes
  // on has others.
  std::vector<nlohmann::json> metrics(const std::string& run, bool bytes = false) const {
    std::ifstream in(run_file(run, "metrics.jsonl"));
    std::vector<nlohmann::json> out;
    for (std::string line; std::getline(in, line);) {
      const nlohmann::json row = nlohmann::json::parse(line);
      nlohmann::json kept;
      for (const auto& [key, value] : row.items())
        if (key != "wall_time" && !key.starts_with("timing_s/") && !key.starts_with("perf/") &&
            (bytes || (!key.starts_with("comm/") && !key.starts_with("refit/") && !key.starts_with("memory/"))))
          kept[key] = value;
      out.push_back(kept);
    }
    return out;
  }

  // Everything a resume reads, and the metrics, are equal bit for bit.
  void expect_same_run(const std::string& a, const std::string& b, int64_t step) const {
    for (const char* name : {"master.safetensors", "optimizer.safetensors", "progress.json"})
      EXPECT_TRUE(read_bytes(state_file(a, step, name)) == read_bytes(state_file(b, step, name)))
          << name << " of " << a << " and " << b;
    const auto x = metrics(a), y = metrics(b);
    ASSERT_EQ(x.size(), y.size()) << a << " and " << b;
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], y[i]) << a << " and " << b << ", row " << i;
  }

  TemporaryDirectory dir_;
  Registry registry_;
};

}  // namespace weft
