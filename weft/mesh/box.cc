#include "weft/mesh/box.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace weft {

Box intersect(const Box& a, const Box& b) {
  Box out;
  out.offset.reserve(a.offset.size());
  out.size.reserve(a.offset.size());
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.size[d], b.offset[d] + b.size[d]);
    out.offset.push_back(begin);
    out.size.push_back(std::max<int64_t>(0, end - begin));
  }
  return out;
}

std::string box_text(const Box& box) {
  std::string out;
  for (size_t d = 0; d < box.offset.size(); ++d)
    out += fmt::format("{}{}:{}", d ? ", " : "", box.offset[d], box.offset[d] + box.size[d]);
  return "[" + out + "]";
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace weft
