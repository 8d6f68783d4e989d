#include "weft/io/hf_latent_attention.h"

#include "weft/io/json_fields.h"
#include "weft/io/json_file.h"

namespace weft {

bool has_latent_attention(const HfConfig& config) { return config.model_type == "deepseek_v3" || config.model_type == "kimi_k2"; }

LatentAttentionConfig read_latent_attention(const HfConfig& config) {
  constexpr int64_t kMaxWidth = 1 << 20, kMaxLayers = 1 << 16;
  const nlohmann::json root = parse_json(config.raw_json, config.path);
  JsonFields fields(root, config.path);
  LatentAttentionConfig c;
  c.q_lora_rank = fields.integer("q_lora_rank", 1, kMaxWidth).value_or(0);
  c.kv_lora_rank = fields.required_integer("kv_lora_rank", 1, kMaxWidth);
  c.qk_nope_head_dim = fields.required_integer("qk_nope_head_dim", 1, kMaxWidth);
  c.qk_rope_head_dim = fields.required_integer("qk_rope_head_dim", 1, kMaxWidth);
  c.v_head_dim = fields.required_integer("v_head_dim", 1, kMaxWidth);
  if (const auto whole = fields.integer("qk_head_dim", 1, 2 * kMaxWidth); whole && *whole != c.qk_head_dim())
    fields.fail("qk_head_dim", fmt::format("{} is not qk_nope_head_dim + qk_rope_head_dim = {}", *whole, c.qk_head_dim()));
  c.first_k_dense_replace = fields.integer("first_k_dense_replace", 0, kMaxLayers).value_or(3);
  c.moe_layer_freq = fields.integer("moe_layer_freq", 1, kMaxLayers).value_or(1);
  c.n_shared_experts = fields.integer("n_shared_experts", 0, 1024).value_or(0);
  c.num_nextn_predict_layers = fields.integer("num_nextn_predict_layers", 0, kMaxLayers).value_or(0);
  c.quantized = fields.has("quantization_config");
  return c;
}

}  // namespace weft
