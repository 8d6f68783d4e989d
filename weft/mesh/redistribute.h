#pragma once
// Changing a tensor's layout within one mesh, partial values included (DTensor's redistribute), as data: who executes it is
// elsewhere.
//
// With S bytes of tensor and n ranks on an axis, each rank receives (sizes that divide; else exactly the boxes, without padding)
//   shard -> copy      (n-1)/n S       all-gather
//   shard -> other dim (n-1)/n^2 S     all-to-all
//   partial -> shard   (n-1)/n S       reduce-scatter: all-to-all, then a sum in a fixed order at the receiver
//   partial -> copy    2(n-1)/n S      the same onto one dim, then gathered
//   copy -> shard, copy -> partial     nothing
// Several axes may change at once.

#include <cstdint>
#include <optional>
#include <vector>

#include "weft/mesh/layout.h"
#include "weft/mesh/plan.h"

namespace weft {

struct StageTransfer {
  Transfer transfer;
  int64_t contribution = 0;  // which term it carries
};

// From the local tensors of `from` to those of `to`. Each element of a destination receives one term of every contribution 0 ..
// n-1; they are joined by `op` in this order, in one binary tree split at the largest power of two below n, then divided by
// `divisor`. One contribution is a plain copy. Elements that receive nothing are identity(*fill); without `fill` there are none.
struct Stage {
  Layout from, to;
  std::vector<StageTransfer> transfers;  // sorted by source, destination, contribution, offset; local copies included
  ReduceOp op = ReduceOp::kSum;          // never kAvg: that is a sum and a divisor
  int64_t contributions = 1;
  int64_t divisor = 1;
  std::optional<ReduceOp> fill;
};

// At most two stages; none for equal layouts. The terms of several partial axes are numbered by their coordinates in the mesh's
// order, last axis fastest. copy -> partial keeps the value at coordinate 0 and the identity elsewhere (avg: the value
// everywhere, which gives the same bits back where the axis is a power of two). ValueError for different shapes or meshes, a cut
// axis that becomes partial, an axis that changes its op, a layout made of boxes.
std::vector<Stage> plan_redistribute(const Layout& from, const Layout& to);

}  // namespace weft
