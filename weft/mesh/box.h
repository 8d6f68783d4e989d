#pragma once
// A box: a hyper-rectangle of a global tensor. Layouts, files and slices of fused tensors are all sets of boxes
// (docs/sharding.md).

#include <algorithm>
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

// Calls fn(first, count) for the longest runs of consecutive elements that a box is made of in a row-major tensor of `shape`,
// ascending; `first` counts elements of the tensor.
template <typename Fn>
void for_each_run(const std::vector<int64_t>& shape, const Box& box, const Fn& fn) {
  if (box.numel() == 0) return;
  size_t outer = shape.size();  // dims above the run's
  int64_t inner = 1;
  while (outer > 0 && box.size[outer - 1] == shape[outer - 1]) inner *= shape[--outer];
  int64_t count = inner, first = 0, stride = inner;
  if (outer > 0) {
    --outer;
    count *= box.size[outer];
    first = box.offset[outer] * inner;
    stride = inner * shape[outer];
  }
  std::vector<int64_t> index(outer, 0);
  for (;;) {
    int64_t at = first, step = stride;
    for (size_t d = outer; d-- > 0; step *= shape[d]) at += (box.offset[d] + index[d]) * step;
    fn(at, count);
    size_t d = outer;
    while (d > 0 && ++index[d - 1] == box.size[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

// Calls fn(part) for parts of at most `elements` (at least 1) that make up the box, in its row-major order.
template <typename Fn>
void for_each_part(const Box& box, int64_t elements, const Fn& fn) {
  const int64_t all = box.numel();
  if (all == 0) return;
  if (all <= std::max<int64_t>(1, elements)) return fn(box);
  size_t d = 0;
  while (box.size[d] == 1) ++d;
  const int64_t slices = std::max<int64_t>(1, elements / (all / box.size[d]));
  for (int64_t i = 0; i < box.size[d]; i += slices) {
    Box part = box;
    part.offset[d] += i;
    part.size[d] = std::min(slices, box.size[d] - i);
    for_each_part(part, elements, fn);
  }
}

// "[0:4, 2:3]": from and to of each dim.
std::string box_text(const Box& box);
// "[128, 64]"
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace weft
