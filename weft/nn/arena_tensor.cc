#include "weft/nn/arena_tensor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

namespace weft::nn {

at::Tensor arena_tensor(const std::shared_ptr<Arena>& arena, const std::vector<int64_t>& shape, at::ScalarType dtype) {
  if (!arena) return at::empty(shape, at::TensorOptions().dtype(dtype));
  int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (int64_t s : shape) bytes *= s;
  return at::from_blob(
      arena->allocate(bytes), shape, [arena](void*) {}, at::TensorOptions().dtype(dtype));
}

}  // namespace weft::nn
