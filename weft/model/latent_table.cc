// The DeepSeek-V3 family (arXiv:2412.19437): multi-head latent attention, a shared expert beside the routed ones, dense layers
// first. A table of shapes: the blocks do not run it yet.
#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/model/parameter_table.h"

namespace weft {
namespace {

struct Sizes {
  int64_t hidden, heads, experts, expert_width, shared_width;
  const LatentAttentionConfig& l;
};

void add_attention(const std::string& prefix, int64_t layer, const Sizes& s, std::vector<TableRow>& rows) {
  const auto add = [&](const char* name, std::vector<int64_t> shape, bool rounded = true) {
    rows.push_back({prefix + "self_attn." + name, std::move(shape), rounded, layer});
  };
  const int64_t queries = s.heads * s.l.qk_head_dim();
  if (s.l.q_lora_rank > 0) {
    add("q_a_proj.weight", {s.l.q_lora_rank, s.hidden});
    add("q_a_layernorm.weight", {s.l.q_lora_rank}, false);
    add("q_b_proj.weight", {queries, s.l.q_lora_rank});
  } else {
    add("q_proj.weight", {queries, s.hidden});
  }
  add("kv_a_proj_with_mqa.weight", {s.l.kv_lora_rank + s.l.qk_rope_head_dim, s.hidden});
  add("kv_a_layernorm.weight", {s.l.kv_lora_rank}, false);
  add("kv_b_proj.weight", {s.heads * (s.l.qk_nope_head_dim + s.l.v_head_dim), s.l.kv_lora_rank});
  add("o_proj.weight", {s.hidden, s.heads * s.l.v_head_dim});
}

void add_mlp(const std::string& prefix, int64_t layer, int64_t hidden, int64_t width, std::vector<TableRow>& rows) {
  rows.push_back({prefix + "gate_proj.weight", {width, hidden}, true, layer});
  rows.push_back({prefix + "up_proj.weight", {width, hidden}, true, layer});
  rows.push_back({prefix + "down_proj.weight", {hidden, width}, true, layer});
}

void add_layer(int64_t layer, bool moe, const Sizes& s, int64_t dense_width, std::vector<TableRow>& rows) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  rows.push_back({prefix + "input_layernorm.weight", {s.hidden}, false, layer});
  rows.push_back({prefix + "post_attention_layernorm.weight", {s.hidden}, false, layer});
  add_attention(prefix, layer, s, rows);
  if (!moe) return add_mlp(prefix + "mlp.", layer, s.hidden, dense_width, rows);
  rows.push_back({prefix + "mlp.gate.weight", {s.experts, s.hidden}, false, layer});
  rows.push_back({prefix + "mlp.gate.e_score_correction_bias", {s.experts}, false, layer});
  rows.push_back({prefix + "mlp.experts.gate_up_proj", {s.experts, 2 * s.expert_width, s.hidden}, true, layer});
  rows.push_back({prefix + "mlp.experts.down_proj", {s.experts, s.hidden, s.expert_width}, true, layer});
  if (s.shared_width > 0) add_mlp(prefix + "mlp.shared_experts.", layer, s.hidden, s.shared_width, rows);
}

// Heads by columns, then rows; what all heads read (the latents, their norms and the part of the keys that RoPE turns) whole on
// every rank, with the sum of the ranks' gradients taken where the latents enter the heads.
ShardingPlan latent_plan(const ParameterTable& t, bool sequence_parallel, bool any_dense, bool any_moe) {
  const int64_t heads = t.config.num_heads;
  ShardingPlan plan{
      cut("model.embed_tokens.weight", "tp", 0, Shares::kVocabulary),
      replicated("model.norm.weight", "tp"),
      cut("*.kv_b_proj.weight", "tp", 0, Shares::kContraction, heads),
      cut("*.o_proj.weight", "tp", 1, Shares::kContraction, heads),
      cut(t.latent->q_lora_rank > 0 ? "*.q_b_proj.weight" : "*.q_proj.weight", "tp", 0, Shares::kContraction, heads),
  };
  const auto on_slices = [&](const char* pattern) {
    plan.push_back(sequence_parallel ? replicated_partial(pattern, "tp") : replicated(pattern, "tp"));
  };
  on_slices("*layernorm.weight");
  on_slices("*.kv_a_proj_with_mqa.weight");
  if (t.latent->q_lora_rank > 0) on_slices("*.q_a_proj.weight");
  if (!t.config.tied) plan.push_back(cut("lm_head.weight", "tp", 0, Shares::kVocabulary));
  std::vector<std::string> mlps;
  if (any_dense) mlps.push_back("*.mlp.");
  if (any_moe && t.shared_intermediate_size > 0) mlps.push_back("*.shared_experts.");
  for (const std::string& mlp : mlps) {
    plan.push_back(cut(mlp + "gate_proj.weight", "tp", 0, Shares::kContraction));
    plan.push_back(cut(mlp + "up_proj.weight", "tp", 0, Shares::kContraction));
    plan.push_back(cut(mlp + "down_proj.weight", "tp", 1, Shares::kContraction));
  }
  if (any_moe) {
    on_slices("*.mlp.gate.*");
    plan.push_back(cut("*.experts.gate_up_proj", "ep", 0));
    plan.push_back(cut("*.experts.down_proj", "ep", 0));
  }
  return plan;
}

}  // namespace

ParameterTable latent_table(const HfConfig& hf, bool sequence_parallel) {
  ParameterTable t;
  t.runs = false;
  t.latent = read_latent_attention(hf);
  const LatentAttentionConfig& l = *t.latent;
  if (hf.num_experts > 0 && hf.num_experts_per_tok < 1) throw FileError(hf.path, "num_experts_per_tok", "missing, with experts");
  ModelConfig& c = t.config;
  c.family = hf.model_type;
  c.vocab_size = hf.vocab_size, c.hidden_size = hf.hidden_size, c.intermediate_size = hf.intermediate_size;
  c.num_layers = hf.num_hidden_layers, c.num_heads = hf.num_attention_heads, c.num_kv_heads = hf.num_attention_heads;
  c.head_dim = l.qk_head_dim();
  c.max_position_embeddings = hf.max_position_embeddings;
  c.tied = hf.tie_word_embeddings;
  c.moe.num_experts = hf.num_experts, c.moe.top_k = hf.num_experts_per_tok, c.moe.intermediate_size = hf.moe_intermediate_size;
  if (hf.num_experts > 0) t.shared_intermediate_size = l.n_shared_experts * hf.moe_intermediate_size;
  const Sizes sizes{c.hidden_size, c.num_heads, c.moe.num_experts, c.moe.intermediate_size, t.shared_intermediate_size, l};
  t.rows.push_back({"model.embed_tokens.weight", {c.vocab_size, c.hidden_size}, true, -1});
  bool any_dense = false, any_moe = false;
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const bool moe = hf.num_experts > 0 && l.is_moe_layer(i);
    (moe ? any_moe : any_dense) = true;
    c.moe_layers.push_back(moe);
    add_layer(i, moe, sizes, c.intermediate_size, t.rows);
  }
  t.rows.push_back({"model.norm.weight", {c.hidden_size}, false, -1});
  if (!c.tied) t.rows.push_back({"lm_head.weight", {c.vocab_size, c.hidden_size}, true, -1});
  for (const TableRow& row : t.rows) {
    int64_t n = c.num_layers;
    for (int64_t size : row.shape)
      if (__builtin_mul_overflow(n, size, &n) || n > int64_t{1} << 56)
        throw FileError(hf.path, "", fmt::format("{} has more parameters than any machine holds", row.name));
  }
  t.plan = latent_plan(t, sequence_parallel, any_dense, any_moe);
  t.notes.push_back("weft cannot run this family yet: the plan is of its table of shapes, with the sharding that it would have");
  if (l.num_nextn_predict_layers > 0)
    t.notes.push_back(
        fmt::format("the {} multi-token-prediction layer{} of the checkpoint {} left out: the policy's loss does not train {}",
                    l.num_nextn_predict_layers, l.num_nextn_predict_layers > 1 ? "s" : "",
                    l.num_nextn_predict_layers > 1 ? "are" : "is", l.num_nextn_predict_layers > 1 ? "them" : "it"));
  if (l.quantized) t.notes.push_back("the checkpoint is quantised; training and rollout are planned in the dtypes asked for");
  return t;
}

}  // namespace weft
