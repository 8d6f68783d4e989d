#include "weft/model/families.h"

namespace weft {

Family qwen2_family() {
  return {"qwen2", "Qwen2ForCausalLM", [](const HfConfig& hf) {
            ModelConfig c = base_config(hf);
            c.qkv_bias = true;
            return c;
          }};
}

}  // namespace weft
