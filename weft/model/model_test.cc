// Configs, rope tables, weight maps, token batches and initial weights.

#include <cmath>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones_like.h>
#include <filesystem>
#include <map>
#include <numbers>

#include "weft/base/error.h"
#include "weft/io/checkpoint_files.h"
#include "weft/io/test_files.h"
#include "weft/model/test_support.h"
#include "weft/model/weight_map.h"

namespace weft {
namespace {

using namespace weft::testing;

const char* const kModels[] = {"llama", "llama3_rope", "qwen2", "qwen3", "qwen3_yarn", "qwen3_moe", "qwen3_moe_oe", "mixtral"};

HfConfig hf_of(const std::string& model) { return HfConfig::load(test_data("models/" + model)); }

// A config with `more` among its keys.
std::string llama_json(const std::string& more) {
  return R"({"model_type": "llama", "vocab_size": 53, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 256,
    "tie_word_embeddings": false, "hidden_act": "silu")" +
         (more.empty() ? "" : ", " + more) + "}";
}

TEST(ModelConfig, ReadsEveryGolden) {
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    const HfConfig hf = hf_of(name);
    const ModelConfig c = configure_model(hf);
    EXPECT_EQ(c.family, hf.model_type);
    EXPECT_EQ(static_cast<int64_t>(c.inv_freq.size()), c.head_dim / 2);
    EXPECT_EQ(static_cast<int64_t>(c.moe_layers.size()), c.num_layers);
  }
  EXPECT_EQ(configure_model(hf_of("qwen3_moe")).moe_layer_ids(), (std::vector<int32_t>{0, 2}));
  EXPECT_FALSE(configure_model(hf_of("qwen3")).has_moe());
  EXPECT_TRUE(configure_model(hf_of("qwen3")).qk_norm);
  EXPECT_TRUE(configure_model(hf_of("qwen2")).qkv_bias);
  EXPECT_FALSE(configure_model(hf_of("qwen2")).o_bias);
  EXPECT_EQ(configure_model(hf_of("mixtral")).moe.block, "block_sparse_moe");
  EXPECT_GT(configure_model(hf_of("qwen3_moe_oe")).history(), 0);
}

// Published sizes; nothing is allocated.
TEST(ModelConfig, ReadsPublishedConfigs) {
  const std::map<std::string, int64_t> parameters = {{"qwen3-0.6b", 596049920},
                                                     {"qwen3-30b-a3b", 30532122624},
                                                     {"qwen3-235b-a22b", 235093634560},
                                                     {"mixtral-8x7b", 46702792704}};
  for (const auto& [name, expected] : parameters) {
    const std::string path = test_data("configs/" + name + ".json");
    std::ifstream in(path);
    const std::string json((std::istreambuf_iterator<char>(in)), {});
    const CausalLM m(configure_model(HfConfig::parse(json, path)), at::kBFloat16);
    EXPECT_EQ(m.num_parameters(), expected) << name;
  }
}

TEST(ModelConfig, RefusesWhatItDoesNotSupport) {
  EXPECT_NO_THROW(config_of(llama_json("")));
  const std::map<std::string, std::string> cases = {
      {R"("sliding_window": 16, "use_sliding_window": true)", "sliding"},
      {R"("head_dim": 7)", "head_dim"},
      {R"("partial_rotary_factor": 0.5)", "partial_rotary_factor"},
      {R"("new_feature": true)", "new_feature"},
      {R"("architectures": ["LlamaForTokenClassification"])", "LlamaForTokenClassification"},
      {R"("rope_scaling": {"rope_type": "dynamic", "factor": 2.0})", "dynamic"},
  };
  for (const auto& [more, word] : cases) {
    const std::string message = message_of<FileError>([&] { config_of(llama_json(more)); });
    EXPECT_NE(message.find(word), std::string::npos) << more << ": " << message;
    EXPECT_NE(message.find("config.json"), std::string::npos) << message;
  }
  std::string heads = llama_json("");
  heads.replace(heads.find("\"num_key_value_heads\": 2"), 24, "\"num_key_value_heads\": 3");
  EXPECT_NE(message_of<FileError>([&] { config_of(heads); }).find("num_key_value_heads"), std::string::npos);
  for (const char* name : {"deepseek-v3-671b", "kimi-k2-1t"}) {
    std::ifstream in(test_data(std::string("configs/") + name + ".json"));
    const std::string json((std::istreambuf_iterator<char>(in)), {});
    const std::string message = message_of<FileError>([&] { config_of(json); });
    EXPECT_NE(message.find("deepseek_v3"), std::string::npos) << message;
    EXPECT_NE(message.find("qwen3_moe"), std::string::npos) << message;  // what there is
  }
}

TEST(ModelConfig, TakesARegisteredFamily) {
  Family mine = llama_family();
  mine.model_type = "my_llama", mine.architecture = "MyLlamaForCausalLM";
  std::string json = llama_json("");
  json.replace(json.find("llama"), 5, "my_llama");
  EXPECT_THROW(config_of(json), FileError);
  EXPECT_EQ(configure_model(HfConfig::parse(json, "config.json"), {mine}).hidden_size, 24);
}

// head_dim 64, theta 10000, context 64.
std::vector<float> rope_of(const std::string& scaling, double* factor = nullptr) {
  const ModelConfig c = config_of(
      llama_json(R"("head_dim": 64, "rope_theta": 10000.0)" + (scaling.empty() ? "" : ", \"rope_scaling\": " + scaling)));
  if (factor) *factor = c.rope_attention_factor;
  return c.inv_freq;
}

double plain(int i) { return std::pow(10000.0, -2.0 * i / 64.0); }

void expect_frequencies(const std::vector<float>& ours, const std::function<double(int)>& formula) {
  ASSERT_EQ(ours.size(), 32u);
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(ours[static_cast<size_t>(i)], formula(i), 2e-7 * formula(i)) << i;
}

TEST(Rope, DefaultAndLinear) {
  double factor = 0;
  expect_frequencies(rope_of("", &factor), plain);
  EXPECT_EQ(factor, 1.0);
  expect_frequencies(rope_of(R"({"rope_type": "linear", "factor": 4.0})"), [](int i) { return plain(i) / 4; });
}

TEST(Rope, Llama3KeepsFastAndDividesSlowFrequencies) {
  const auto f = rope_of(R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 64})");
  int kept = 0, divided = 0, between = 0;
  expect_frequencies(f, [&](int i) {
    // Turns over the original context: more than 4 keep, fewer than 1 divide, a straight line of weights between.
    const double turns = 64.0 * plain(i) / (2 * std::numbers::pi), weight = std::clamp((turns - 1) / 3, 0.0, 1.0);
    (weight == 0 ? divided : weight == 1 ? kept : between) += 1;
    return plain(i) * (weight + (1 - weight) / 8);
  });
  EXPECT_GT(kept, 0);
  EXPECT_GT(divided, 0);
  EXPECT_GT(between, 0);
}

TEST(Rope, YarnInterpolatesBetweenItsCorrectionDims) {
  double factor = 0;
  const auto f = rope_of(R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256})", &factor);
  EXPECT_NEAR(factor, 0.1 * std::log(4.0) + 1, 1e-12);
  // The dim that turns r times over the context: where 256 * theta^(-2d/64) = 2 pi r.
  auto dim = [](double r) { return 64.0 / 2 * std::log(256 / (2 * std::numbers::pi * r)) / std::log(10000.0); };
  const double low = std::max(0.0, std::floor(dim(32))), high = std::ceil(dim(1));
  EXPECT_LT(low + 4, high);
  expect_frequencies(f, [&](int i) {
    const double divide = std::clamp((i - low) / (high - low), 0.0, 1.0);
    return plain(i) * (1 - divide) + plain(i) / 4 * divide;
  });
}

TEST(WeightMap, NamesAndShapesAreThoseOnDisk) {
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    const ModelConfig c = configure_model(hf_of(name));
    const Checkpoint disk(test_data(std::string("models/") + name));
    std::map<std::string, std::vector<int64_t>> ours, theirs;
    for (const WeightEntry& e : weight_map(c)) EXPECT_TRUE(ours.emplace(e.name, e.shape).second) << e.name;
    for (const TensorInfo& t : disk.tensors()) theirs.emplace(t.name, t.shape);
    if (c.tied) {
      EXPECT_EQ(ours.count("lm_head.weight"), 0u);
      theirs.erase(tied_head(c).name);
    }
    EXPECT_EQ(ours, theirs);
  }
}

TEST(WeightMap, CoversEveryElementOnce) {
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    CausalLM m(configure_model(hf_of(name)), at::kFloat);
    m.materialize(at::kCPU);
    for (nn::Parameter* p : m.parameters()) p->master().zero_();
    for (const WeightEntry& e : weight_map(m.config())) {
      nn::Parameter* p = m.find_parameter(e.parameter);
      ASSERT_NE(p, nullptr) << e.parameter;
      at::Tensor box = p->master();
      for (size_t d = 0; d < e.box.size.size(); ++d) box = box.narrow(static_cast<int64_t>(d), e.box.offset[d], e.box.size[d]);
      box.add_(1.0);
      int64_t on_disk = 1;
      for (const int64_t s : e.shape) on_disk *= s;
      EXPECT_EQ(e.box.numel(), on_disk) << e.name;
    }
    for (nn::Parameter* p : m.parameters()) EXPECT_TRUE(at::equal(p->master(), at::ones_like(p->master()))) << p->name();
  }
}

TEST(TokenBatch, PacksSpansPositionsAndHistory) {
  const Tokens a = {5, 6, 7, 8}, b = {9};
  const std::vector<SequenceSpan> spans = {{a, 1, 4}, {b, 0, 0}, {b, 0, 1}, {a, 0, 2}};
  const TokenBatch t = TokenBatch::pack(spans, 2);
  auto values = [](const at::Tensor& x) { return Tokens(x.data_ptr<int32_t>(), x.data_ptr<int32_t>() + x.numel()); };
  EXPECT_EQ(t.offsets, (std::vector<int64_t>{0, 3, 3, 4, 6}));
  EXPECT_EQ(t.num_tokens(), 6);
  EXPECT_EQ(values(t.ids), (Tokens{6, 7, 8, 9, 5, 6}));
  EXPECT_EQ(values(t.positions), (Tokens{1, 2, 3, 0, 0, 1}));
  EXPECT_EQ(values(t.history), (Tokens{5, 0, 6, 5, 7, 6, 0, 0, 0, 0, 5, 0}));
  EXPECT_FALSE(TokenBatch::pack(spans, 0).history.defined());
  EXPECT_EQ(TokenBatch::pack({}, 2).num_tokens(), 0);
  const std::vector<SequenceSpan> outside = {{b, 0, 2}}, backwards = {{a, 2, 1}};
  EXPECT_THROW(TokenBatch::pack(outside, 0), InternalError);
  EXPECT_THROW(TokenBatch::pack(backwards, 0), InternalError);
}

TEST(InitWeights, DependOnSeedAndNameOnly) {
  CausalLM a(config_of(moe_json({})), at::kFloat), b(config_of(moe_json({.layers = 2})), at::kBFloat16),
      c(config_of(moe_json({})), at::kFloat);
  for (CausalLM* m : {&a, &b, &c}) m->materialize(at::kCPU);
  init_weights(a, 7), init_weights(b, 7), init_weights(c, 8);
  for (nn::Parameter* p : b.parameters())
    EXPECT_TRUE(nn::testing::same_bits(p->master(), a.find_parameter(p->name())->master())) << p->name();
  for (nn::Parameter* p : a.parameters()) {
    if (p->dim() == 1) {
      EXPECT_TRUE(at::equal(p->master(), at::ones_like(p->master()))) << p->name();
      continue;
    }
    EXPECT_FALSE(at::equal(p->master(), c.find_parameter(p->name())->master())) << p->name();
    EXPECT_NEAR(p->master().std().item<double>(), 0.02, 0.004) << p->name();
    EXPECT_NEAR(p->master().mean().item<double>(), 0.0, 0.006) << p->name();
  }
}

TEST(CausalLM, RefusesTokensOutsideTheVocabulary) {
  auto m = tiny_moe();
  LiveRouting live;
  for (const int32_t bad : {-1, 53}) EXPECT_THROW(hidden_of(*m, {{1, bad}}, live), ValueError);
}

TEST(CausalLM, ALogProbabilityIsThatOfItsLogits) {
  auto m = tiny_moe();
  at::NoGradGuard guard;
  LiveRouting live;
  const at::Tensor normed = m->final_norm(hidden_of(*m, {some_tokens(6, 1)}, live));
  auto rows = std::make_shared<nn::HeadRows>();
  auto bias = std::make_shared<kernels::LogitBias>();
  bias->ids = {3, 20}, bias->values = {60.0f, -100.0f};  // as large as samplers allow: far beyond the logits
  for (const int32_t t : {3, 20, 1, 52, 0, 3}) rows->rows.push_back({t, 2.0f, nullptr, bias.get()});
  const nn::HeadOutput o = m->log_probs(normed, rows, true);
  at::Tensor z = m->logits(normed).to(at::kDouble);
  z.select(1, 3).add_(60.0), z.select(1, 20).sub_(100.0);
  const at::Tensor lp = at::log_softmax(z * 2.0, 1);
  for (int64_t r = 0; r < 6; ++r)
    EXPECT_NEAR(o.log_probs[r].item<double>(), lp[r][rows->rows[static_cast<size_t>(r)].target].item<double>(), 5e-5) << r;
  EXPECT_LE((o.entropy.to(at::kDouble) + (lp.exp() * lp).sum(1)).abs().max().item<double>(), 1e-4);
}

}  // namespace
}  // namespace weft
