#pragma once
// How a step's samples are cut into mini-batches, one optimizer update each: the same for actor and critic.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weft/train/recipe.h"

namespace weft {

// Mini-batches of one epoch over a step's prompts.
int64_t mini_batches(const Recipe& recipe, int64_t prompts);
// The samples (prompt * n + sample) of update `u` of a step, epochs counted through: prompts in order, or with actor.shuffle in
// one that is drawn anew each epoch.
std::vector<size_t> mini_batch_members(const Recipe& recipe, int64_t step, int64_t prompts, int64_t u);

}  // namespace weft
