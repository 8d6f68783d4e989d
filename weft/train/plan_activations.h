#pragma once
// What a micro-batch's forward keeps for its backward, and what the backward needs on top at its fullest moment (docs/plan.md).

#include <cstdint>
#include <vector>

#include "weft/model/parameter_table.h"
#include "weft/train/plan.h"
#include "weft/train/plan_traffic.h"

namespace weft {

// Sizes that one rank sees.
struct ActivationSizes {
  int64_t tokens = 0;      // fed by this rank
  int64_t all_tokens = 0;  // of the ranks of cp: keys and values in attention
  int64_t slice = 0;       // rows between the blocks
  int64_t routed = 0;      // rows of the slice that a MoE layer works on
  int64_t head_rows = 0;
  int64_t heads = 0, kv_heads = 0, intermediate = 0, shared = 0, vocab = 0;  // this rank's
  bool cp = false, tp = false, ep = false;
  std::vector<int64_t> received;  // by MoE layer: rows that this rank's experts get, one for each slot
};
// `rank`'s; its experts get as many slots as its rows send.
ActivationSizes activation_sizes(const ParameterTable& table, const ParallelDims& dims, const PlanOptions& options,
                                 const MicroBatchRows& rows, int64_t rank);

struct ActivationBytes {
  int64_t kept = 0;  // when the forward is over
  int64_t peak = 0;
};
ActivationBytes activation_bytes(const ParameterTable& table, const PlanOptions& options, const ActivationSizes& sizes);

}  // namespace weft
