#pragma once
// Where row r of a view begins, and what every kernel demands of a view's dtype.

#include "weft/base/error.h"
#include "weft/kernels/matrix.h"

namespace weft::kernels {

inline bool is_bf16(ConstMatrix a) {
  WEFT_CHECK(a.dtype == DType::kBF16 || a.dtype == DType::kF32, "kernels take float32 and bfloat16, not {}", dtype_name(a.dtype));
  return a.dtype == DType::kBF16;
}
inline const void* row_of(ConstMatrix a, int64_t row) {
  return static_cast<const char*>(a.data) + row * a.stride * (a.dtype == DType::kBF16 ? 2 : 4);
}
inline void* row_of(Matrix a, int64_t row) {
  return static_cast<char*>(a.data) + row * a.stride * (a.dtype == DType::kBF16 ? 2 : 4);
}
inline const float* f32_row(ConstMatrix a, int64_t row) { return static_cast<const float*>(a.data) + row * a.stride; }

}  // namespace weft::kernels
