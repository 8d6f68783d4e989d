#include "weft/train/check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <mutex>

#include "weft/base/error.h"
#include "weft/comm/launch.h"
#include "weft/io/checkpoint_files.h"
#include "weft/io/safetensors.h"
#include "weft/nn/autograd.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

const char* const kFamilies[] = {"llama", "llama3_rope", "qwen2", "qwen3", "qwen3_yarn", "qwen3_moe", "qwen3_moe_oe", "mixtral"};

std::string model_dir(const std::string& name) { return fmt::format("{}/tests/data/models/{}", WEFT_SOURCE_DIR, name); }

std::string golden(const LoadedModel& m) { return fmt::format("{}/golden.safetensors", m.dir); }

class Golden : public ::testing::TestWithParam<const char*> {};

TEST_P(Golden, KernelsMatchTransformers) {
  LoadedModel m = load_model(model_dir(GetParam()), DType::kF32);
  const CheckReport r = check_model(m, golden(m));
  EXPECT_TRUE(r.ok()) << r.table(false);
  EXPECT_GT(r.rows.size(), 30u);
}

TEST_P(Golden, CompositionsMatchTransformers) {
  LoadedModel m = load_model(model_dir(GetParam()), DType::kF32);
  nn::force_compositions(nn::kEveryOp);
  const CheckReport r = check_model(m, golden(m));
  nn::force_compositions(nn::kNoOp);
  EXPECT_TRUE(r.ok()) << r.table(false);
}

TEST_P(Golden, Bfloat16StaysWithinItsMeasuredBounds) {
  LoadedModel m = load_model(model_dir(GetParam()), DType::kBF16);
  const CheckReport r = check_model(m, golden(m), bf16_check_options());
  EXPECT_TRUE(r.ok()) << r.table(false);
}

TEST_P(Golden, SaveWritesWhatWasLoaded) {
  const std::string dir = fmt::format("{}/weft_save_{}", ::testing::TempDir(), GetParam());
  fs::remove_all(dir);
  fs::create_directories(dir);
  LoadedModel m = load_model(model_dir(GetParam()), DType::kBF16);  // masters are fp32 whatever forward reads
  save_model(m, dir);
  const Checkpoint before(m.dir), after(dir);
  ASSERT_EQ(before.tensors().size(), after.tensors().size());
  for (const TensorInfo& t : before.tensors()) {
    const TensorInfo& u = after.tensor(t.name);
    EXPECT_EQ(t.dtype, u.dtype);
    EXPECT_EQ(t.shape, u.shape);
    const auto a = before.bytes(t.name), b = after.bytes(t.name);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << t.name;
  }
  fs::remove_all(dir);
}

// On meshes too, every parameter of every family: with and without sequence parallelism, both splits of contexts.
TEST_P(Golden, MeshesMatchTransformers) {
  const std::string name = GetParam();
  std::vector<std::string> meshes = {"fsdp=3", "replicate=2,fsdp=2", "fsdp=2,tp=2", "fsdp=2,cp=2", "cp=2,tp=2"};
  if (name.find("moe") != std::string::npos || name == "mixtral")
    meshes = {"fsdp=3,ep=3", "fsdp=2,tp=2", "fsdp=2,tp=2,ep=2", "fsdp=2,tp=2,ep=4", "fsdp=2,cp=2,ep=4", "cp=2,tp=2,ep=2"};
  if (name == "qwen3_moe_oe") meshes.push_back("fsdp=2,cp=2,ep=2,oe=4");
  for (const std::string& text : meshes)
    for (const bool slices : {false, true}) {
      const ParallelDims dims = parse_parallel_dims(text, 0, {"oe"});
      run_ranks(static_cast<int>(dims.world()), {}, [&](Communicator& world) {
        const auto mesh = make_rank_mesh(dims, world, {slices ? ContextSplit::kContiguous : ContextSplit::kZigzag, slices});
        LoadedModel m = load_model(model_dir(name), DType::kF32, "cpu", {}, mesh);
        const CheckReport r = check_model(m, golden(m));
        static std::mutex mutex;
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(r.ok()) << text << " " << slices << " rank " << world.rank() << "\n" << r.table(false);
        EXPECT_GT(r.rows.size(), 30u);
      });
    }
}

INSTANTIATE_TEST_SUITE_P(Families, Golden, ::testing::ValuesIn(kFamilies), [](const auto& p) { return std::string(p.param); });

TEST(Check, FailsWhenOneWeightIsOffOnOneRank) {
  run_ranks(4, {}, [&](Communicator& world) {
    LoadedModel m = load_model(model_dir("qwen3_moe"), DType::kF32, "cpu", {},
                               make_rank_mesh(parse_parallel_dims("fsdp=2,tp=2,ep=2", 0, {"oe"}), world));
    nn::Parameter* p = m.model->find_parameter("model.layers.0.self_attn.q_proj.weight");
    if (world.rank() == 3) {
      at::NoGradGuard guard;
      p->master().mul_(1.01);
    }
    p->updated();
    EXPECT_FALSE(check_model(m, golden(m)).ok()) << "rank " << world.rank();
  });
}

// Goldens of other shapes, types and tokens are the file's fault, and say so.
TEST(Check, HostileGoldensAreFileErrors) {
  LoadedModel m = load_model(model_dir("qwen3_moe"), DType::kF32);
  const std::string path = fmt::format("{}/hostile_golden.safetensors", ::testing::TempDir());
  const auto refused = [&](const std::string& name, DType dtype, const std::vector<int64_t>& shape,
                           int64_t token) -> std::string {
    const SafetensorsFile good(golden(m));
    std::vector<TensorToSave> tensors;
    for (const TensorInfo& t : good.tensors()) {
      const bool changed = t.name == name;
      int64_t numel = 1;
      for (int64_t n : changed ? shape : t.shape) numel *= n;
      const DType d = changed ? dtype : t.dtype;
      const auto bytes = good.bytes(t);
      std::vector<std::byte> data(bytes.begin(), bytes.end());
      if (changed) {
        data.assign(static_cast<size_t>(numel * dtype_bytes(d)), std::byte{0});
        if (d == DType::kI64 && numel > 0) std::memcpy(data.data(), &token, sizeof(token));
      }
      tensors.push_back({t.name, d, changed ? shape : t.shape, [data](const TensorToSave::Write& write) { write(data); }});
    }
    fs::remove(path);
    save_safetensors(path, tensors);
    try {
      (void)check_model(m, path);
    } catch (const FileError& e) {
      return e.what();
    }
    return "none";
  };
  struct Case {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
  };
  for (const Case& c : std::vector<Case>{{"greedy", DType::kI64, {0, 8}},
                                         {"greedy", DType::kF32, {1, 8}},
                                         {"greedy", DType::kI64, {8}},
                                         {"input_ids", DType::kF32, {2, 8}},
                                         {"input_ids", DType::kI64, {0, 8}},
                                         {"logits", DType::kF32, {2, 2}},
                                         {"loss", DType::kF32, {2}},
                                         {"grad/model.norm.weight", DType::kF32, {1}}})
    EXPECT_NE(refused(c.name, c.dtype, c.shape, 1).find(c.name), std::string::npos) << c.name;
  for (const int64_t token : {int64_t{-1}, int64_t{1} << 32, int64_t{1} << 40})
    EXPECT_NE(refused("input_ids", DType::kI64, {1, 8}, token).find("outside the vocabulary"), std::string::npos) << token;
}

// The golden of a model, changed: tensors by name, with their bytes.
struct GoldenTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};
using GoldenTensors = std::map<std::string, GoldenTensor>;
std::string changed_golden(const LoadedModel& m, const std::function<void(GoldenTensors&)>& change) {
  const SafetensorsFile good(golden(m));
  GoldenTensors tensors;
  for (const TensorInfo& t : good.tensors()) {
    const auto bytes = good.bytes(t);
    tensors[t.name] = {t.dtype, t.shape, {bytes.begin(), bytes.end()}};
  }
  change(tensors);
  std::vector<TensorToSave> out;
  for (const auto& [name, t] : tensors)
    out.push_back({name, t.dtype, t.shape, [data = t.bytes](const TensorToSave::Write& write) { write(data); }});
  const std::string path = fmt::format("{}/changed_golden.safetensors", ::testing::TempDir());
  fs::remove(path);
  save_safetensors(path, out);
  return path;
}
GoldenTensor scalar(float value) {
  GoldenTensor t;
  t.bytes.resize(sizeof(value));
  std::memcpy(t.bytes.data(), &value, sizeof(value));
  return t;
}

// Neither passes, wherever it is, and whatever the tolerance of the rest.
TEST(Check, WhatIsNotFiniteFails) {
  LoadedModel m = load_model(model_dir("qwen3_moe"), DType::kF32);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const CheckOptions& options : {CheckOptions(), bf16_check_options()})
    for (const float value : {inf, -inf, nan})
      for (const char* field : {"logits", "logprobs", "loss", "router_weights/0", "router_logits/0", "grad/model.norm.weight",
                                "grad/model.layers.0.mlp.experts.3.gate_proj.weight"}) {
        const std::string path = changed_golden(m, [&](GoldenTensors& tensors) {
          ASSERT_TRUE(tensors.count(field)) << field;
          std::memcpy(tensors[field].bytes.data(), &value, sizeof(value));
        });
        const CheckReport r = check_model(m, path, options);
        EXPECT_FALSE(r.ok()) << field << " " << value;
        for (const CheckRow& row : r.rows) EXPECT_EQ(row.ok, row.field != field) << row.field << " " << value;
      }
  nn::Parameter* p = m.model->find_parameter("model.layers.2.mlp.experts.down_proj");
  {
    const at::NoGradGuard guard;
    p->master().fill_(inf);
  }
  p->updated();
  for (const CheckOptions& options : {CheckOptions(), bf16_check_options()}) {
    const CheckReport r = check_model(m, golden(m), options);
    EXPECT_FALSE(r.ok());
    for (const CheckRow& row : r.rows) EXPECT_FALSE(row.ok && (row.field == "logits" || row.field == "loss")) << row.field;
  }
}

TEST(Check, GoldensThatCompareNothingAreFileErrors) {
  LoadedModel m = load_model(model_dir("qwen3_moe"), DType::kF32);
  const auto refused = [&](const std::string& part, const std::function<void(GoldenTensors&)>& change) {
    const std::string path = changed_golden(m, change);
    std::string text = "nothing";
    try {
      (void)check_model(m, path);
    } catch (const FileError& e) {
      text = e.what();
    }
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  for (const char* field : {"logits", "logprobs", "grad"})
    for (const float noise : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), -1e-6F})
      refused(std::string("noise/") + field, [&](GoldenTensors& t) { t[std::string("noise/") + field] = scalar(noise); });
  for (const int64_t tokens : {1, 6, 7})
    refused("greedy", [&](GoldenTensors& t) {
      t["greedy"].shape = {1, tokens};
      t["greedy"].bytes.resize(static_cast<size_t>(tokens) * sizeof(int64_t));
    });
  refused("3 tensors that are compared with nothing of this model: grad/model.norm.wieght, logit, router_topk/7",
          [](GoldenTensors& t) {
            for (const char* name : {"router_topk/7", "logit", "grad/model.norm.wieght"}) t[name] = scalar(0);
          });
}

TEST(Check, FailsWhenOneWeightIsOff) {
  LoadedModel m = load_model(model_dir("qwen3_moe"), DType::kF32);
  nn::Parameter* p = m.model->find_parameter("model.layers.0.mlp.experts.down_proj");
  ASSERT_NE(p, nullptr);
  {
    at::NoGradGuard guard;
    p->master().mul_(1.01);
  }
  p->updated();
  EXPECT_FALSE(check_model(m, golden(m)).ok());
}

}  // namespace
}  // namespace weft
