#pragma once
// From a step's rewards and log-probs to what its updates read. Needs the whole step at once: groups and whitening span it.

#include "weft/train/metrics.h"
#include "weft/train/recipe.h"
#include "weft/train/registry.h"
#include "weft/train/step_data.h"

namespace weft {

// Fills data.advantages, masks, weights and reference_kl from its samples, baselines and log-probs (of the reference and the teacher:
// empty where there is none), with their metrics. In this order: the mask of what is trained, overlong punishment, the rollout correction,
// KL in the reward with coefficient kl_coef, the recipe's advantage estimator, distillation.
void compute_advantages(const Recipe& recipe, const Registry& registry, double kl_coef, StepData& data, MetricsRow& row);

}  // namespace weft
