// exp and log of sixteen lanes, for *_simd.cc files, included after simd.h (inside the target region). No libm; results that
// would be denormal are +0 on every target, since hardware flushing is on everywhere. At most 2 ulp (elementwise_test.cc).
// scalar_math.h repeats the same operations on one float.
#pragma once

#include <limits>

// g++ 12 takes the undefined pass-through operands of its own AVX-512 intrinsics for uninitialised reads.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "weft/kernels/vec_constants.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {

// exp(0) = 1 exactly; exp(-inf) = 0; overflow is inf; NaN stays NaN.
WEFT_INLINE f32 exp(f32 x) {
  x = min(set1(kExpHighest), max(set1(kExpLowest), x));  // this operand order lets NaN through
  const f32 n = round_even(mul(x, set1(kLog2E)));
  const f32 r = fma(n, set1(-kLn2Low), fma(n, set1(-kLn2High), x));
  f32 q = set1(kExpPoly[5]);
  for (int i = 4; i >= 0; --i) q = fma(q, r, set1(kExpPoly[i]));
  const f32 p = add(fma(mul(r, r), q, r), set1(1.0f));
  f32 y = mul(p, exp2_int(min(n, set1(127.0f))));
  y = select(less(set1(127.0f), n), add(y, y), y);  // 2^128 is no float: double the result instead
  return select(less(y, set1(kSmallestNormal)), zero(), y);
}

// log(1) = 0 exactly; zero and denormals give -inf; negative gives NaN; inf stays inf.
WEFT_INLINE f32 log(f32 x) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  f32 m = or_bits(and_bits(x, 0x007fffffu), 0x3f800000u);
  f32 e = exponent(x);
  const m16 high = less(set1(kSqrt2), m);
  m = select(high, mul(m, set1(0.5f)), m);
  e = select(high, add(e, set1(1.0f)), e);
  const f32 f = sub(m, set1(1.0f));
  const f32 square = mul(f, f);
  f32 p = set1(kLogPoly[8]);
  for (int i = 7; i >= 0; --i) p = fma(p, f, set1(kLogPoly[i]));
  f32 y = fma(mul(square, f), p, mul(e, set1(kLn2Low)));
  y = fma(e, set1(kLn2High), add(fma(set1(-0.5f), square, y), f));
  y = select(less(x, set1(kSmallestNormal)), set1(-kInf), y);
  y = select(less(set1(-kSmallestNormal), x), y, set1(std::numeric_limits<float>::quiet_NaN()));
  y = select(equal(x, set1(kInf)), x, y);
  return select(is_nan(x), x, y);
}

// Lanes i..i+15 of a row of n elements, fp32 or bf16 (widened); lanes past the row are zero, and are not touched by stores.
WEFT_INLINE f32 load_at(const void* row, bool is_bf16, int64_t i, int64_t n) {
  if (is_bf16) {
    const bf16* p = static_cast<const bf16*>(row) + i;
    if (n - i >= 16) return load_bf16(p);
    bf16 buffer[16] = {};
    for (int64_t j = 0; j < n - i; ++j) buffer[j] = p[j];
    return load_bf16(buffer);
  }
  const float* p = static_cast<const float*>(row) + i;
  return n - i >= 16 ? load(p) : load_first(p, n - i);
}
WEFT_INLINE void store_at(void* row, bool is_bf16, int64_t i, int64_t n, f32 a) {
  if (is_bf16) {
    bf16* p = static_cast<bf16*>(row) + i;
    if (n - i >= 16) return store_bf16(p, a);
    bf16 buffer[16];
    store_bf16(buffer, a);
    for (int64_t j = 0; j < n - i; ++j) p[j] = buffer[j];
    return;
  }
  float* p = static_cast<float*>(row) + i;
  if (n - i >= 16) return store(p, a);
  store_first(p, a, n - i);
}

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE
