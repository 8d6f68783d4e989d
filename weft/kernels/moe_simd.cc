#include "weft/kernels/moe_simd.h"

#include <bit>

#include "weft/kernels/simd.h"
#include "weft/kernels/vec_math.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {
namespace {

void combine(const void* row, bool row_bf16, float gate, float* y, bool first_slot, int64_t n) {
  const f32 g = set1(gate);
  for (int64_t i = 0; i < n; i += 16) {
    f32 v = mul(g, load_at(row, row_bf16, i, n));
    if (!first_slot) v = add(load_at(y, false, i, n), v);
    store_at(y, false, i, n, v);
  }
}

void scale(const float* dy, float gate, void* out, bool out_bf16, int64_t n) {
  const f32 g = set1(gate);
  for (int64_t i = 0; i < n; i += 16) store_at(out, out_bf16, i, n, mul(g, load_at(dy, false, i, n)));
}

float dot(const float* a, const void* b, bool b_bf16, int64_t n) {
  f32 lanes = zero();
  for (int64_t i = 0; i < n; i += 16) lanes = fma(load_at(a, false, i, n), load_at(b, b_bf16, i, n), lanes);
  return sum_lanes(lanes);
}

}  // namespace

extern const MoeTable kMoe;
const MoeTable kMoe = {combine, scale, dot};

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE

#include "weft/kernels/simd_end.h"
