#pragma once
// Bytes by kind and rank of a trainer and of a rollout (docs/plan.md).

#include "weft/train/plan.h"
#include "weft/train/plan_kinds.h"

namespace weft {

MemoryPlan train_memory(const ParameterTable& table, const WeightKinds& kinds, const std::vector<PlacedKind>& placed,
                        const ParallelDims& dims, const PlanOptions& options);
MemoryPlan rollout_memory(const ParameterTable& table, const WeightKinds& kinds, const std::vector<PlacedKind>& placed,
                          const ParallelDims& dims, const PlanOptions& options);

// Bytes that fully_shard group `group` (0: the outermost, then the layers) gathers, by rank.
std::vector<int64_t> gathered_bytes(const WeightKinds& kinds, const std::vector<PlacedKind>& placed, size_t group,
                                    DType param_dtype);
// Elements of a token's keys and values in one layer of a rank's cache.
int64_t kv_elements(const ParameterTable& table, const ParallelDims& dims);

}  // namespace weft
