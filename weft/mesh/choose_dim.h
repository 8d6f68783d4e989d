#pragma once
// Along which dim a parameter is sharded when no plan says so (docs/sharding.md). Whole rows per rank where possible.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/mesh/layout.h"

namespace weft {

struct DimChoice {
  std::optional<int64_t> dim;  // none: every shard holds the whole tensor
  std::string reason;          // for a person, e.g. "dim 1: the first that 4 divides (cut already: dim 0)"
};

// `taken`: the dims that a plan cuts already.
//   none taken: the first dim that `shards` divides, else dim 0 in ceil chunks, the last of which may be empty.
//   else:       of the dims not taken the first that `shards` divides, else the longest (ties to the lower); none left: no dim.
// A 0-d tensor is not sharded. ValueError for shards < 1.
DimChoice choose_dim(const std::vector<int64_t>& shape, const std::vector<int64_t>& taken, int64_t shards);

// The same for one more axis of a layout.
DimChoice choose_dim(const Layout& layout, const std::string& axis);

}  // namespace weft
