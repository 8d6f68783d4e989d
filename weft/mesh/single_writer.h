#pragma once
// Who writes which element of a sharded tensor to a file: each is written once, by one of the ranks that hold it.

#include <cstdint>
#include <vector>

#include "weft/mesh/layout.h"

namespace weft {

// What `rank` writes of the boxes that it holds; copies share each box evenly, along its first dim that has a slice for everyone
// (else its longest). Over the ranks of the mesh these cover the tensor, without overlap. Costs the same on any number of ranks.
// ValueError for partial layouts and those made of boxes.
std::vector<LocalBox> boxes_to_write(const Layout& layout, int64_t rank);

}  // namespace weft
