#pragma once
// A box: a hyper-rectangle of a global tensor. Layouts, files and slices of fused tensors are all sets of boxes
// (docs/sharding.md).

#include <cstdint>
#include <string>
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

// What two boxes of as many dims share; sizes of 0 where they do not meet. Boxes without dims (of a 0-d tensor) share their
// element.
Box intersect(const Box& a, const Box& b);

// "[0:4, 2:3]": from and to of each dim.
std::string box_text(const Box& box);
// "[128, 64]"
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace weft
