#pragma once
// For tests of refits: 16 thread ranks, and the elements of a rank's local tensor with their places in the whole.

#include <numeric>
#include <vector>

#include "weft/comm/launch.h"
#include "weft/mesh/layout.h"

namespace weft::test {

constexpr int kRefitRanks = 16;  // as random layouts have

inline std::vector<int> all_ranks() {
  std::vector<int> out(kRefitRanks);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

inline CommOptions one_thread() {
  CommOptions o;
  o.threads_per_rank = 1;
  return o;
}

// Calls fn(index in the local tensor, index in the whole) for what a rank holds.
template <typename Fn>
void each_element(const Layout& layout, int64_t rank, const Fn& fn) {
  const std::vector<int64_t> shape = layout.shape(), local = layout.local_shape(rank);
  for (const LocalBox& b : layout.boxes(rank)) {
    std::vector<int64_t> index(shape.size(), 0);
    for (int64_t n = 0; n < b.box.numel(); ++n) {
      int64_t here = 0, there = 0;
      for (size_t d = 0; d < shape.size(); ++d) {
        here = here * local[d] + b.local_offset[d] + index[d];
        there = there * shape[d] + b.box.offset[d] + index[d];
      }
      fn(here, there);
      for (size_t d = shape.size(); d-- > 0;) {
        if (++index[d] < b.box.size[d]) break;
        index[d] = 0;
      }
    }
  }
}

}  // namespace weft::test
