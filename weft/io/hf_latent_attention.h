#pragma once
// What config.json of the DeepSeek-V3 family (deepseek_v3, kimi_k2) says beyond HfConfig: multi-head latent attention, shared
// experts and where the dense layers are.

#include <cstdint>
#include <string>
#include <vector>

#include "weft/io/hf_config.h"

namespace weft {

// Defaults are transformers' DeepseekV3Config.
struct LatentAttentionConfig {
  int64_t q_lora_rank = 0;  // 0: queries are projected at once
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  int64_t first_k_dense_replace = 0;  // layers before it are dense
  int64_t moe_layer_freq = 1;
  int64_t n_shared_experts = 0;
  int64_t num_nextn_predict_layers = 0;  // layers that predict further tokens, behind the last
  bool quantized = false;                // the file speaks of a quantised checkpoint

  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  bool is_moe_layer(int64_t layer) const { return layer >= first_k_dense_replace && layer % moe_layer_freq == 0; }
};

bool has_latent_attention(const HfConfig& config);
// FileError for missing, mistyped or out-of-range values.
LatentAttentionConfig read_latent_attention(const HfConfig& config);

}  // namespace weft
