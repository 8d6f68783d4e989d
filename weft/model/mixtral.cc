#include "weft/model/families.h"

namespace weft {

Family mixtral_family() {
  return {"mixtral", "MixtralForCausalLM", [](const HfConfig& hf) {
            ModelConfig c = base_config(hf);
            c.moe.num_experts = hf.num_experts;
            c.moe.top_k = hf.num_experts_per_tok;
            c.moe.intermediate_size = hf.intermediate_size;
            c.moe.normalize = true;
            c.moe.block = "block_sparse_moe";
            c.moe.gate = "w1", c.moe.up = "w3", c.moe.down = "w2";
            c.moe_layers.assign(c.moe_layers.size(), true);
            return c;
          }};
}

}  // namespace weft
