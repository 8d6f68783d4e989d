#pragma once
// Bytes by kind and rank of a trainer and of a rollout (docs/plan.md).

#include "weft/train/plan.h"
#include "weft/train/plan_kinds.h"

namespace weft {

MemoryPlan train_memory(const ParameterTable& table, const WeightKinds& kinds, const std::vector<PlacedKind>& placed,
                        const ParallelDims& dims, const PlanOptions& options);
MemoryPlan rollout_memory(const ParameterTable& table, const WeightKinds& kinds, const std::vector<PlacedKind>& placed,
                          const ParallelDims& dims, const PlanOptions& options);

// Of a rank of both roles: the rollout's weights that are the trainer's own memory, where the roles share ranks. It reads what
// the trainer holds where that is the same part in the same dtype (train/rollout_role.h).
std::vector<int64_t> shared_weights(const WeightKinds& kinds, const std::vector<PlacedKind>& train,
                                    const std::vector<PlacedKind>& rollout, const PlanOptions& options);

// Bytes that fully_shard group `group` (0: the outermost, then the layers) gathers, by rank.
std::vector<int64_t> gathered_bytes(const WeightKinds& kinds, const std::vector<PlacedKind>& placed, size_t group,
                                    DType param_dtype);
// Elements of a token's keys and values in one layer of a rank's cache.
int64_t kv_elements(const ParameterTable& table, const ParallelDims& dims);

}  // namespace weft
