#include "weft/mesh/choose_dim.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "weft/base/error.h"

namespace weft {

DimChoice choose_dim(const std::vector<int64_t>& shape, const std::vector<int64_t>& taken, int64_t shards) {
  if (shards < 1) throw ValueError(fmt::format("{} shards", shards));
  if (shape.empty()) return {std::nullopt, "replicated: a 0-d tensor has no dim"};
  std::vector<int64_t> open;
  for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d)
    if (std::find(taken.begin(), taken.end(), d) == taken.end()) open.push_back(d);
  const std::string cut = taken.empty() ? "" : fmt::format(" (cut already: dim {})", fmt::join(taken, ", "));
  for (int64_t d : open)
    if (shape[d] % shards == 0) return {d, fmt::format("dim {}: the first that {} divides{}", d, shards, cut)};
  if (taken.empty()) return {0, fmt::format("dim 0: {} divides no dim of {}, so ceil chunks", shards, shape_text(shape))};
  if (open.empty()) return {std::nullopt, fmt::format("replicated: no dim left{}", cut)};
  const int64_t longest = *std::max_element(open.begin(), open.end(), [&](int64_t a, int64_t b) { return shape[a] < shape[b]; });
  return {longest, fmt::format("dim {}: {} divides no dim left of {}, so the longest in ceil chunks{}", longest, shards,
                               shape_text(shape), cut)};
}

DimChoice choose_dim(const Layout& layout, const std::string& axis) {
  std::vector<int64_t> taken;
  for (const Cut& cut : layout.cuts())
    if (std::find(taken.begin(), taken.end(), cut.dim) == taken.end()) taken.push_back(cut.dim);
  std::sort(taken.begin(), taken.end());
  return choose_dim(layout.shape(), taken, layout.mesh().size(axis));
}

}  // namespace weft
