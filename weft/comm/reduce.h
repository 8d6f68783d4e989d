#pragma once
// Joins the parts of several ranks element by element, in one fixed order: a binary tree over ranks, split at the largest power of
// two below n, left + right. Every engine calls this function on parts in rank order, so all give the same bits.
//
// float64 is joined in float64, float32 in float32; bfloat16 and float16 are widened to float32 at the leaves and rounded once at
// the end; integers are joined in their own type and wrap. kAvg divides the sum by n once, before the rounding, and exists for
// floats only. bool takes kMin (and) and kMax (or) only. A NaN in any part gives NaN (kMin and kMax too).

#include <cstddef>
#include <cstdint>
#include <span>

#include "weft/base/dtype.h"
#include "weft/mesh/placement.h"

namespace weft {

// Throws ValueError where `op` does not exist for `dtype`.
void check_reducible(DType dtype, ReduceOp op);

// out[i] = tree(parts[0][i], ..., parts[n-1][i]) for i in [0, count). n >= 1. `out` may be one of the parts, else overlaps none.
// The denormal mode of the calling thread is part of the result: threads of ours flush (base/threads.h).
void reduce_parts(std::span<const std::byte* const> parts, std::byte* out, int64_t count, DType dtype, ReduceOp op);

// Where the tree over n >= 2 ranks splits: the largest power of two below n.
int reduce_split(int n);

}  // namespace weft
