#pragma once
// For the tests of the model: configs, small models and forwards over packed sequences.

#include <algorithm>
#include <ATen/core/grad_mode.h>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "weft/model/causal_lm.h"
#include "weft/model/families.h"
#include "weft/nn/attention.h"
#include "weft/nn/test_support.h"

namespace weft::testing {

using Tokens = std::vector<int32_t>;

struct TinyMoe {
  int64_t experts = 6, top_k = 3, layers = 3;
  std::string dense_layers = "[1]";
};

inline std::string moe_json(const TinyMoe& m) {
  return fmt::format(
      R"({{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 53, "hidden_size": 24,
    "intermediate_size": 40, "num_hidden_layers": {}, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "tie_word_embeddings": false, "hidden_act": "silu", "attention_bias": false,
    "rope_theta": 1000.0, "num_experts": {}, "num_experts_per_tok": {}, "moe_intermediate_size": 12, "norm_topk_prob": true,
    "decoder_sparse_step": 1, "mlp_only_layers": {}}})",
      m.layers, m.experts, m.top_k, m.dense_layers);
}

inline ModelConfig config_of(const std::string& json) { return configure_model(HfConfig::parse(json, "config.json")); }

// Weights of the usual spread times 8, so that layers matter beside the residual stream and routers are decided.
inline std::unique_ptr<CausalLM> make_model(ModelConfig config, at::ScalarType dtype, uint64_t seed = 1) {
  auto m = std::make_unique<CausalLM>(std::move(config), dtype);
  m->materialize(at::kCPU);
  init_weights(*m, seed);
  at::NoGradGuard guard;
  for (nn::Parameter* p : m->parameters()) {
    if (p->dim() > 1) p->master().mul_(8.0);
    p->updated();
  }
  return m;
}

inline std::unique_ptr<CausalLM> tiny_moe(at::ScalarType dtype = at::kFloat, TinyMoe m = {}) {
  return make_model(config_of(moe_json(m)), dtype);
}

inline Tokens some_tokens(int64_t n, uint64_t seed) {
  Tokens out;
  const CounterRng rng(seed);
  for (int64_t i = 0; i < n; ++i) out.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(i), 53)));
  return out;
}

// The residual stream of these sequences, packed in this order.
inline at::Tensor hidden_of(CausalLM& model, const std::vector<Tokens>& sequences, Routing& routing,
                            ForwardOptions options = {}) {
  std::vector<SequenceSpan> spans;
  for (const Tokens& t : sequences) spans.push_back({t, 0, static_cast<int64_t>(t.size())});
  const TokenBatch batch = TokenBatch::pack(spans, model.config().history());
  // A backward that recomputes comes back to the attention object after this function has returned.
  static std::deque<nn::PackedAttention> kept;
  nn::PackedAttention& attention = kept.emplace_back(model.attention_shape(), batch.offsets);
  return model.forward(batch, attention, routing, options);
}

inline RoutingBuffer buffer_of(const CausalLM& model, int64_t rows) {
  return RoutingBuffer::make(model.config().moe_layer_ids(), rows, model.config().moe.top_k);
}

}  // namespace weft::testing
