#include "weft/kernels/rope_simd.h"

#include <bit>

#include "weft/kernels/simd.h"
#include "weft/kernels/vec_math.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {
namespace {

void row(const void* x, bool x_bf16, int64_t heads, int64_t half, const float* cos, const float* sin, float sign, void* y,
         bool y_bf16) {
  const f32 s = set1(sign);
  const char* in = static_cast<const char*>(x);
  char* out = static_cast<char*>(y);
  const int64_t in_half = half * (x_bf16 ? 2 : 4), out_half = half * (y_bf16 ? 2 : 4);
  for (int64_t head = 0; head < heads; ++head, in += 2 * in_half, out += 2 * out_half)
    for (int64_t i = 0; i < half; i += 16) {
      const f32 a = load_at(in, x_bf16, i, half), b = load_at(in + in_half, x_bf16, i, half);
      const f32 c = load_at(cos, false, i, half), t = mul(s, load_at(sin, false, i, half));
      store_at(out, y_bf16, i, half, sub(mul(a, c), mul(b, t)));
      store_at(out + out_half, y_bf16, i, half, add(mul(b, c), mul(a, t)));
    }
}

}  // namespace

extern const RopeTable kRope;
const RopeTable kRope = {row};

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE

#include "weft/kernels/simd_end.h"
