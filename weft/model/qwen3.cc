#include "weft/model/families.h"

namespace weft {

Family qwen3_family() {
  return {"qwen3", "Qwen3ForCausalLM", [](const HfConfig& hf) {
            ModelConfig c = base_config(hf);
            c.qkv_bias = c.o_bias = hf.attention_bias;
            c.qk_norm = true;
            return c;
          }};
}

}  // namespace weft
