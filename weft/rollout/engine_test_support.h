#pragma once
// Small random models and requests for the engine's tests, and the trainer's view of what the engine sampled.

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/base/random.h"
#include "weft/base/threads.h"
#include "weft/rollout/engine.h"

namespace weft::test {

enum class Kind { kDense, kMoe, kOverEncoded };
constexpr int64_t kVocab = 97;

inline ModelConfig small_config(Kind kind, int64_t vocab) {
  ModelConfig c;
  c.family = "test";
  c.vocab_size = vocab;
  c.hidden_size = 32, c.intermediate_size = 48;
  c.num_layers = 2, c.num_heads = 4, c.num_kv_heads = 2, c.head_dim = 8;
  c.max_position_embeddings = 256;
  c.qk_norm = kind != Kind::kDense;
  c.qkv_bias = kind == Kind::kDense;
  c.moe_layers = {false, kind != Kind::kDense};
  if (kind == Kind::kMoe) c.moe_layers[0] = true;
  if (kind != Kind::kDense) c.moe.num_experts = 6, c.moe.top_k = 2, c.moe.intermediate_size = 24;
  if (kind == Kind::kOverEncoded) c.over_encoding = OverEncodingConfig{2, 2, 3};  // tables of 2- and 3-grams
  for (int i = 0; i < 4; ++i) c.inv_freq.push_back(static_cast<float>(std::pow(10000.0, -i / 4.0)));
  return c;
}

// Weights so large that logits are far from uniform.
inline std::unique_ptr<CausalLM> small_model(Kind kind, at::ScalarType dtype, int64_t vocab = kVocab) {
  auto model = std::make_unique<CausalLM>(small_config(kind, vocab), dtype);
  model->materialize(at::kCPU);
  init_weights(*model, 5);
  for (nn::Parameter* p : model->parameters())
    if (p->dim() > 1) {
      c10::NoGradGuard guard;
      p->master().mul_(15.0);
      p->updated();
    }
  return model;
}

inline std::vector<int32_t> random_prompt(int64_t tokens, uint64_t seed, int64_t vocab = kVocab) {
  std::vector<int32_t> ids;
  const CounterRng rng(seed);
  for (int64_t i = 0; i < tokens; ++i)
    ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(i), static_cast<uint64_t>(vocab))));
  return ids;
}

inline GenerationRequest request(RequestId id, int64_t prompt, int64_t max_tokens, int64_t n = 1) {
  GenerationRequest r;
  r.id = id;
  r.prompt_ids = random_prompt(prompt, static_cast<uint64_t>(id) + 100);
  r.params.max_tokens = max_tokens;
  r.params.n = n;
  r.seed = static_cast<uint64_t>(id) * 7 + 3;
  return r;
}

// By (request, sample).
using Samples = std::map<std::pair<RequestId, int64_t>, GeneratedSample>;

inline void collect(Engine& engine, Samples& out) {
  for (GeneratedSample& s : engine.take_finished()) {
    const std::pair key(s.request, s.trajectory.sample_index);
    WEFT_CHECK(!out.count(key), "a sample ended twice");
    out.emplace(key, std::move(s));
  }
}

inline Samples run_all(Engine& engine, Samples out = {}) {
  while (engine.step()) {
    engine.check_integrity();
    collect(engine, out);
  }
  return out;
}

inline Samples run(CausalLM& model, const std::vector<GenerationRequest>& requests, EngineConfig config = {},
                   const Tokenizer* tokenizer = nullptr) {
  Engine engine(model, config, tokenizer);
  for (const GenerationRequest& r : requests) engine.add(r);
  return run_all(engine);
}

struct TrainerView {
  std::vector<std::vector<float>> log_probs;  // [trajectory][response]
  std::vector<std::vector<int32_t>> routes;   // [trajectory][row, layer, k]
};

// One packed forward over whole trajectories, as the trainer runs it.
inline TrainerView trainer_view(CausalLM& model, const std::vector<const Trajectory*>& trajectories,
                                const kernels::LogitBias* bias = nullptr) {
  c10::NoGradGuard guard;
  const ModelConfig& c = model.config();
  std::vector<std::vector<int32_t>> tokens;
  std::vector<SequenceSpan> spans;
  for (const Trajectory* t : trajectories) {
    tokens.push_back(t->prompt_ids);
    tokens.back().insert(tokens.back().end(), t->response_ids.begin(), t->response_ids.end());
  }
  for (const auto& ids : tokens) spans.push_back({ids, 0, static_cast<int64_t>(ids.size()) - 1});
  const TokenBatch batch = TokenBatch::pack(spans, c.history());
  auto head = std::make_shared<nn::HeadRows>();
  std::vector<int64_t> index;
  for (size_t i = 0; i < trajectories.size(); ++i) {
    const Trajectory& t = *trajectories[i];
    for (size_t j = 0; j < t.response_ids.size(); ++j) {
      index.push_back(batch.offsets[i] + static_cast<int64_t>(t.prompt_ids.size() + j) - 1);
      kernels::HeadRow row{t.response_ids[j], 1.0f / static_cast<float>(t.temperature), nullptr, bias};
      if (!t.kept.empty() && !t.kept[j].is_all()) {
        auto kept = std::make_shared<kernels::KeptTokens>(kernels::KeptTokens{false, t.kept[j].ids(c.vocab_size)});
        row.kept = kept.get();
        head->owners.push_back(kept);
      }
      head->rows.push_back(row);
    }
  }
  nn::PackedAttention attention(model.attention_shape(), batch.offsets);
  RoutingBuffer routes = RoutingBuffer::make(c.moe_layer_ids(), batch.num_tokens(), c.moe.top_k);
  RecordRouting recording(routes);
  const at::Tensor hidden = model.forward(batch, attention, recording);
  const at::Tensor rows =
      at::index_select(hidden, 0, at::from_blob(index.data(), {static_cast<int64_t>(index.size())}, at::kLong));
  const at::Tensor log_probs = model.log_probs(model.final_norm(rows), head, false).log_probs;
  TrainerView out;
  const float* p = log_probs.data_ptr<float>();
  const int64_t width = static_cast<int64_t>(routes.layers.size()) * routes.top_k;
  for (size_t i = 0; i < trajectories.size(); ++i) {
    const size_t n = trajectories[i]->response_ids.size();
    out.log_probs.emplace_back(p, p + n);
    p += n;
    out.routes.emplace_back(routes.ids.begin() + batch.offsets[i] * width, routes.ids.begin() + batch.offsets[i + 1] * width);
  }
  return out;
}

// Logits [N-1, V] of every position of a sequence but its last.
inline at::Tensor full_logits(CausalLM& model, const std::vector<int32_t>& ids) {
  c10::NoGradGuard guard;
  const SequenceSpan span{ids, 0, static_cast<int64_t>(ids.size()) - 1};
  const TokenBatch batch = TokenBatch::pack({&span, 1}, model.config().history());
  nn::PackedAttention attention(model.attention_shape(), batch.offsets);
  LiveRouting routing;
  return model.logits(model.final_norm(model.forward(batch, attention, routing)));
}

struct Threads {
  explicit Threads(int n) : before(num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(before); }
  int before;
};

}  // namespace weft::test
