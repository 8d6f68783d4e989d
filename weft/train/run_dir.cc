#include "weft/train/run_dir.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "weft/io/atomic_file.h"
#include "weft/train/report.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

bool wants(const Recipe& recipe, const std::string& logger) {
  return std::find(recipe.trainer.logger.begin(), recipe.trainer.logger.end(), logger) != recipe.trainer.logger.end();
}

}  // namespace

RunDir::RunDir(const Recipe& recipe, std::optional<int64_t> resume_step) : path_(recipe.run_dir()) {
  fs::create_directories(path_);
  fs::create_directories(fs::path(path_) / "samples");
  write_file_atomically(path_ + "/recipe.toml", print_recipe(recipe));
  MetricsLogOptions options;
  options.metric_aliases = recipe.trainer.metric_aliases;
  options.resume_step = resume_step;
  options.tensorboard = wants(recipe, "tensorboard");
  metrics_ = std::make_unique<MetricsLog>(path_, std::move(options));
}

RunDir::~RunDir() = default;

void RunDir::write_metrics(int64_t step, const MetricsRow& row) { metrics_->write(step, row); }

void RunDir::write_samples(int64_t step, const PromptSource&, const std::vector<Prompt>& prompts, const std::vector<ScoredSample>& samples,
                           const Tokenizer& tokenizer) {
  using Json = nlohmann::ordered_json;
  std::string text;
  const size_t n = prompts.empty() ? 1 : std::max<size_t>(1, samples.size() / prompts.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    const Trajectory& t = samples[i].trajectory;
    const Prompt& p = prompts[i / n];
    Json j;
    j["input"] = p.text;
    j["output"] = samples[i].text;
    j["gts"] = p.ground_truth_json ? Json::parse(*p.ground_truth_json) : Json();
    j["score"] = t.reward_valid ? Json(t.reward) : Json();
    j["step"] = step;
    j["row"] = t.dataset_row;
    j["sample"] = t.sample_index;
    j["finish_reason"] = t.finish_reason;
    j["rewards"] = t.rewards;
    j["prompt_ids"] = t.prompt_ids;
    j["response_ids"] = t.response_ids;
    j["rollout_log_probs"] = t.rollout_log_probs;
    Json tokens = Json::array();
    for (int32_t id : t.response_ids) tokens.push_back(tokenizer.decode({&id, 1}, false));
    j["tokens"] = std::move(tokens);
    text += j.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  write_file_atomically(fmt::format("{}/samples/{}.jsonl", path_, step), text);
}

void RunDir::write_report() { weft::write_report(path_); }

}  // namespace weft
