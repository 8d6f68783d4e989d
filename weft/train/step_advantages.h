#pragma once
// From a step's rewards and log-probs to what its updates read. Needs the whole step at once: groups and whitening span it.

#include "weft/train/metrics.h"
#include "weft/train/recipe.h"
#include "weft/train/registry.h"
#include "weft/train/step_data.h"

namespace weft {

// Fills data.advantages, masks and weights from its samples, old_log_probs and ref_log_probs (empty: no reference), with their metrics:
// the mask of what is trained, the rollout correction, KL in the reward with coefficient kl_coef, the recipe's advantage estimator.
void compute_advantages(const Recipe& recipe, const Registry& registry, double kl_coef, StepData& data, MetricsRow& row);

}  // namespace weft
