#pragma once
// The loops of norm_simd.cc, one table per SIMD target (internal).

#include <cstdint>

#include "weft/base/dtype.h"
#include "weft/kernels/target.h"

namespace weft::kernels {

struct NormTable {
  // Sum of squares of a row.
  float (*sum_squares)(const float* x, int64_t n);
  void (*scale)(const float* x, float rstd, const float* weight, float* y_f32, bf16* y_bf16, int64_t n);
  // dx (= or +=) of a row.
  void (*dx)(const void* dy, bool dy_bf16, const float* x, const float* weight, float rstd, float* dx, bool accumulate,
             int64_t n);
  // partial [n] += dy * (x * rstd).
  void (*dweight)(const void* dy, bool dy_bf16, const float* x, float rstd, float* partial, int64_t n);
};
namespace portable {
extern const NormTable kNorm;
}
namespace avx2 {
extern const NormTable kNorm;
}
namespace avx512 {
extern const NormTable kNorm;
}

inline const NormTable& norm_table() { return select(portable::kNorm, avx2::kNorm, avx512::kNorm); }

}  // namespace weft::kernels
