#pragma once
// at::Tensor -> the raw views that kernels take. CPU tensors, contiguous in the last dim.

#include <ATen/core/Tensor.h>

#include <span>

#include "weft/base/error.h"
#include "weft/kernels/elementwise.h"
#include "weft/kernels/matrix.h"

namespace weft::nn {

inline DType dtype_of(const at::Tensor& t) {
  if (t.scalar_type() == at::kFloat) return DType::kF32;
  WEFT_CHECK(t.scalar_type() == at::kBFloat16, "kernels take float32 and bfloat16, not {}", c10::toString(t.scalar_type()));
  return DType::kBF16;
}

// A tensor of any shape as rows of its last dim (contiguous), or a 2-D tensor with strided rows.
inline kernels::Matrix matrix(const at::Tensor& t) {
  const int64_t cols = t.size(-1);
  if (t.dim() == 2 && t.stride(1) == 1) return {t.data_ptr(), dtype_of(t), t.size(0), cols, t.stride(0)};
  WEFT_CHECK(t.is_contiguous(), "a kernel operand must be contiguous");
  return {t.data_ptr(), dtype_of(t), cols == 0 ? 0 : t.numel() / cols, cols, cols};
}

inline std::span<const int32_t> ints(const at::Tensor& t) { return {t.data_ptr<int32_t>(), static_cast<size_t>(t.numel())}; }
inline std::span<const int64_t> longs(const at::Tensor& t) { return {t.data_ptr<int64_t>(), static_cast<size_t>(t.numel())}; }
inline at::TensorOptions fp32() { return at::TensorOptions().dtype(at::kFloat); }

}  // namespace weft::nn
