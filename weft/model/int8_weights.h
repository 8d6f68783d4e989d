#pragma once
// Which weights rollout.dtype = "int8" takes as int8 with a scale a row (docs/refit.md).

#include <string_view>

namespace weft {

// By a parameter's name, or a kind's with "*" for the layer: what the layers' products multiply by, of those that param_dtype
// rounds: projections of attention, weights of dense MLPs and of experts. Not embeddings, heads, routers, norms, biases.
bool int8_in_rollout(std::string_view name);

}  // namespace weft
