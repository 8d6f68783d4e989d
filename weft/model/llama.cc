#include "weft/model/families.h"

namespace weft {

Family llama_family() {
  return {"llama", "LlamaForCausalLM", [](const HfConfig& hf) {
            ModelConfig c = base_config(hf);
            c.qkv_bias = c.o_bias = hf.attention_bias;
            c.mlp_bias = hf.mlp_bias;
            return c;
          }};
}

}  // namespace weft
