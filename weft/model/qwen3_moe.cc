#include "weft/model/families.h"

namespace weft {

Family qwen3_moe_family() {
  return {"qwen3_moe", "Qwen3MoeForCausalLM", [](const HfConfig& hf) {
            ModelConfig c = base_config(hf);
            c.qkv_bias = c.o_bias = hf.attention_bias;
            c.qk_norm = true;
            c.moe.num_experts = hf.num_experts;
            c.moe.top_k = hf.num_experts_per_tok;
            c.moe.intermediate_size = hf.moe_intermediate_size;
            c.moe.normalize = hf.norm_topk_prob;
            for (int64_t i = 0; i < c.num_layers; ++i) c.moe_layers[static_cast<size_t>(i)] = hf.is_moe_layer(i);
            return c;
          }};
}

}  // namespace weft
