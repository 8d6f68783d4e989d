#pragma once
// What a trainer's update sends and receives, by axis and purpose: the operations of the forward, the backward and the norm of
// the gradients, as CommStats counts them (docs/plan.md).

#include <functional>
#include <vector>

#include "weft/train/plan.h"
#include "weft/train/plan_kinds.h"

namespace weft {

// Rows of one micro-batch of one place in (replicate, fsdp), by rank of cp.
struct MicroBatchRows {
  std::vector<int64_t> fed;   // rows
  std::vector<int64_t> head;  // of those, whose next token is a response's
  int64_t whole() const;      // rows of all
};

struct StepRows {
  std::vector<std::vector<MicroBatchRows>> places;  // as many micro-batches at each
  bool entropy = true;                              // asked for with the log-probs
  // Slots that a rank's rows send to each expert in the layer-th MoE layer of a micro-batch. Unset: evenly spread.
  std::function<std::vector<int64_t>(int64_t rank, int64_t micro_batch, int64_t layer)> experts;
};
// Full ones; cp has its zigzag split of each sequence.
MicroBatchRows even_micro_batch(const ParallelDims& dims, const PlanOptions& options);
// `options.micro_batches` of them at each place.
StepRows even_rows(const ParallelDims& dims, const PlanOptions& options);

TrafficPlan update_traffic(const ParameterTable& table, const WeightKinds& kinds, const std::vector<PlacedKind>& placed,
                           const ParallelDims& dims, const PlanOptions& options, const StepRows& rows);

}  // namespace weft
