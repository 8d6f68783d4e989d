#pragma once
// Who sends what to whom when the trainer's weights become the rollout's, in numbers (docs/plan.md).

#include "weft/train/plan.h"
#include "weft/train/plan_kinds.h"

namespace weft {

RefitSummary refit_summary(const ParameterTable& table, const ParallelDims& train, const ParallelDims& rollout,
                           const PlanOptions& options);

// About how many transfers a plan of these kinds has.
int64_t about_transfers(const PlannedRefitTensors& kinds);

}  // namespace weft
