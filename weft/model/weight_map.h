#pragma once
// Hugging Face names and shapes of a model's parameters. Experts are stacked in memory ([E, 2I, H], [E, H, I]) and one tensor each
// on disk, under the names of the family.

#include <vector>

#include "weft/mesh/weight_entry.h"
#include "weft/model/model_config.h"

namespace weft {

// In the order of a fresh checkpoint. A tied model has no head on disk, but some checkpoints hold a redundant one: tied_head() is its
// entry.
std::vector<WeightEntry> weight_map(const ModelConfig& config);
WeightEntry tied_head(const ModelConfig& config);

}  // namespace weft
