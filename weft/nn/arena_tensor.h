#pragma once
// Tensors in an arena (weft/base/arena.h), which lives as long as they do.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "weft/base/arena.h"

namespace weft::nn {

// On the CPU. In the arena: zero where it is fresh; without one: libtorch's memory, uninitialised.
at::Tensor arena_tensor(const std::shared_ptr<Arena>& arena, const std::vector<int64_t>& shape, at::ScalarType dtype);

}  // namespace weft::nn
