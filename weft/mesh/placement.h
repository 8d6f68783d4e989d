#pragma once
// How one axis of a mesh treats a tensor: it cuts a dim, holds copies, or holds terms of a reduction.

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

// What joins the values that the ranks of a partial axis hold. kAvg is the sum divided by the number of ranks, after the sum.
enum class ReduceOp { kSum, kAvg, kMin, kMax };

std::string to_string(ReduceOp op);

// The value x with op(x, v) == v for every v: -0.0 for sums (+0.0 would turn -0.0 into +0.0), +inf, -inf. ValueError for kAvg,
// which has none.
double identity(ReduceOp op);

// `axis` (n ranks) cuts the tensor's `dim`, where "length" is what the cuts before it left of the dim. The length is first
// divided into `parts` equal segments (fused halves such as gate and up), and rank c of the axis takes from each segment
//   without boundaries: [c * ceil(length / n), (c + 1) * ceil(length / n)), as torch.chunk: trailing ranks have less or nothing,
//   with boundaries:    [boundaries[c], boundaries[c + 1]); n + 1 ascending offsets from 0 to the segment's length.
struct Cut {
  std::string axis;
  int64_t dim = 0;
  int64_t parts = 1;
  std::vector<int64_t> boundaries = {};
  bool operator==(const Cut&) const = default;
};

// The ranks along `axis` hold terms, the tensor is their reduction.
struct Partial {
  std::string axis;
  ReduceOp op = ReduceOp::kSum;
  bool operator==(const Partial&) const = default;
};

// The numerics contract sums some contractions as 8 leaves, and tp ranks own whole leaves: rank r of t has leaves [8r/t,
// 8(r+1)/t). These are the t + 1 boundaries of the ranks' shares. ValueError unless ranks is 1, 2, 4 or 8.
//   contraction (length K): leaf i starts at b(i) = 2 * floor(i * ceil(K/2) / 8), b(8) = K (docs/numerics.md, rule 3)
//   vocabulary (length V):  b(i) = 16 * floor(i * ceil(V/16) / 8), b(8) = V (rule 4); shares may be empty
std::vector<int64_t> contraction_boundaries(int64_t length, int64_t ranks);
std::vector<int64_t> vocabulary_boundaries(int64_t length, int64_t ranks);

}  // namespace weft
