#pragma once
// Meshes near one that does not work, nearest first: the fewest and smallest changes of axes.

#include <functional>
#include <string>
#include <vector>

#include "weft/mesh/parallel_dims.h"

namespace weft {

// At most `count` for which works() returns true, of the `tries` nearest of the same world; where none is (grow) of the world
// that is 2, 4, 8 or 16 times as large. `experts`: 0 for a dense model.
std::vector<ParallelDims> nearest_meshes(const ParallelDims& dims, bool rollout, int64_t experts, bool grow, size_t count,
                                         size_t tries, const std::function<bool(const ParallelDims&)>& works);
// "fsdp=8,ep=4 or fsdp=4,tp=2"
std::string mesh_list(const std::vector<ParallelDims>& meshes, bool rollout);

}  // namespace weft
