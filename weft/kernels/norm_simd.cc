#include "weft/kernels/norm_simd.h"

#include <bit>

#include "weft/kernels/simd.h"
#include "weft/kernels/vec_math.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {
namespace {

float sum_squares(const float* x, int64_t n) {
  f32 lanes = zero();
  for (int64_t i = 0; i < n; i += 16) {
    const f32 v = load_at(x, false, i, n);
    lanes = fma(v, v, lanes);
  }
  return sum_lanes(lanes);
}

void scale(const float* x, float rstd, const float* weight, float* y_f32, bf16* y_bf16, int64_t n) {
  const f32 r = set1(rstd);
  for (int64_t i = 0; i < n; i += 16) {
    const f32 y = mul(mul(load_at(x, false, i, n), r), load_at(weight, false, i, n));
    if (y_f32) store_at(y_f32, false, i, n, y);
    if (y_bf16) store_at(y_bf16, true, i, n, y);
  }
}

void dx_row(const void* dy, bool dy_bf16, const float* x, const float* weight, float rstd, float* dx, bool accumulate,
            int64_t n) {
  const f32 r = set1(rstd);
  f32 lanes = zero();
  for (int64_t i = 0; i < n; i += 16)
    lanes = fma(mul(load_at(dy, dy_bf16, i, n), load_at(weight, false, i, n)), mul(load_at(x, false, i, n), r), lanes);
  const f32 c = set1(sum_lanes(lanes) / static_cast<float>(n));
  for (int64_t i = 0; i < n; i += 16) {
    const f32 g = mul(load_at(dy, dy_bf16, i, n), load_at(weight, false, i, n));
    f32 d = mul(r, sub(g, mul(mul(load_at(x, false, i, n), r), c)));
    if (accumulate) d = add(load_at(dx, false, i, n), d);
    store_at(dx, false, i, n, d);
  }
}

void dweight(const void* dy, bool dy_bf16, const float* x, float rstd, float* partial, int64_t n) {
  const f32 r = set1(rstd);
  for (int64_t i = 0; i < n; i += 16)
    store_at(partial, false, i, n,
             add(load_at(partial, false, i, n), mul(load_at(dy, dy_bf16, i, n), mul(load_at(x, false, i, n), r))));
}

}  // namespace

extern const NormTable kNorm;
const NormTable kNorm = {sum_squares, scale, dx_row, dweight};

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE

#include "weft/kernels/simd_end.h"
