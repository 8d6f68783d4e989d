#include "weft/model/int8_weights.h"

namespace weft {

bool int8_in_rollout(std::string_view name) {
  return name.starts_with("model.layers.") && name.find("_proj") != std::string_view::npos && !name.ends_with(".bias");
}

}  // namespace weft
