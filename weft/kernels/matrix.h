#pragma once
// Non-owning views that kernels take. Row-major, unit stride in the last dim; `stride` counts elements between rows.

#include <cstdint>

#include "weft/base/dtype.h"

namespace weft::kernels {

// An input matrix, fp32 or bf16.
struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0, stride = 0;
};

// An output matrix, fp32 or bf16 (rounded once, to nearest even).
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0, stride = 0;
  operator ConstMatrix() const { return {data, dtype, rows, cols, stride}; }
};

inline ConstMatrix view(const float* p, int64_t rows, int64_t cols) { return {p, DType::kF32, rows, cols, cols}; }
inline ConstMatrix view(const bf16* p, int64_t rows, int64_t cols) { return {p, DType::kBF16, rows, cols, cols}; }
inline Matrix view(float* p, int64_t rows, int64_t cols) { return {p, DType::kF32, rows, cols, cols}; }
inline Matrix view(bf16* p, int64_t rows, int64_t cols) { return {p, DType::kBF16, rows, cols, cols}; }

}  // namespace weft::kernels
