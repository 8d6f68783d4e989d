#pragma once
// A box: a hyper-rectangle of a global tensor. Layouts, files and slices of fused tensors are all sets of boxes (docs/sharding.md).

#include <cstdint>
#include <vector>

namespace weft {

struct Box {
  std::vector<int64_t> offset, size;  // one entry a dim; a size of 0 makes the box empty

  int64_t numel() const {
    int64_t n = 1;
    for (int64_t s : size) n *= s;
    return n;
  }
  bool operator==(const Box&) const = default;
};

}  // namespace weft
