#include "weft/mesh/single_writer.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft {

std::vector<LocalBox> boxes_to_write(const Layout& layout, int64_t rank) {
  if (layout.made_of_boxes() || !layout.partials().empty())
    throw ValueError("no rule who writes a tensor laid out as " + layout.to_string());
  if (!layout.mesh().contains(rank)) return {};
  // Ranks that differ along axes that cut nothing hold the same boxes.
  int64_t copies = 1, mine = 0;
  for (const std::string& axis : layout.mesh().axes()) {
    if (layout.cuts_axis(axis)) continue;
    const int64_t n = layout.mesh().size(axis);
    mine = mine * n + layout.mesh().coordinate(rank, axis);
    copies *= n;
  }
  std::vector<LocalBox> out;
  for (LocalBox b : layout.boxes(rank)) {
    const std::vector<int64_t>& size = b.box.size;
    if (size.empty()) {
      if (mine == 0) out.push_back(b);
      continue;
    }
    auto dim = std::find_if(size.begin(), size.end(), [&](int64_t n) { return n >= copies; });
    if (dim == size.end()) dim = std::max_element(size.begin(), size.end());
    const size_t d = static_cast<size_t>(dim - size.begin());
    const int64_t each = (size[d] + copies - 1) / copies, begin = std::min(size[d], mine * each),
                  end = std::min(size[d], begin + each);
    if (begin == end) continue;
    b.box.offset[d] += begin;
    b.local_offset[d] += begin;
    b.box.size[d] = end - begin;
    out.push_back(std::move(b));
  }
  return out;
}

}  // namespace weft
