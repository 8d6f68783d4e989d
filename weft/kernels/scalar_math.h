#pragma once
// One float at a time, the same operations in the same order as vec_math.h and simd.h's lane tree, so the same bits: for the
// reference loops (tests' oracles) and for the few scalars that joining partial sums needs.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "weft/base/dtype.h"
#include "weft/kernels/matrix.h"
#include "weft/kernels/vec_constants.h"

namespace weft::kernels::scalar {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

inline float exp(float x) {
  if (x != x) return x + x;  // quiet, as the vector form
  x = x > kExpLowest ? x : kExpLowest;
  x = x < kExpHighest ? x : kExpHighest;
  const float n = std::nearbyint(x * kLog2E);
  const float r = std::fma(n, -kLn2Low, std::fma(n, -kLn2High, x));
  float q = kExpPoly[5];
  for (int i = 4; i >= 0; --i) q = std::fma(q, r, kExpPoly[i]);
  const float p = std::fma(r * r, q, r) + 1.0f;
  const float k = n < 127.0f ? n : 127.0f;
  float y = p * std::bit_cast<float>((static_cast<int32_t>(k) + 127) << 23);
  if (n > 127.0f) y = y + y;
  return y < kSmallestNormal ? 0.0f : y;
}

inline float log(float x) {
  if (x != x || x == kInf) return x;
  if (x <= -kSmallestNormal) return std::numeric_limits<float>::quiet_NaN();
  if (x < kSmallestNormal) return -kInf;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  float e = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  float m = std::bit_cast<float>((bits & 0x007fffffu) | 0x3f800000u);
  if (m > kSqrt2) {
    m = m * 0.5f;
    e = e + 1.0f;
  }
  const float f = m - 1.0f;
  const float square = f * f;
  float p = kLogPoly[8];
  for (int i = 7; i >= 0; --i) p = std::fma(p, f, kLogPoly[i]);
  const float y = std::fma(square * f, p, e * kLn2Low);
  return std::fma(e, kLn2High, std::fma(-0.5f, square, y) + f);
}

// Sixteen lane sums joined by halves of 8, 4, 2, 1 (rule 4). Overwrites v.
inline float lane_tree(float* v) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) v[i] = v[i] + v[i + half];
  return v[0];
}

// A running log-sum-exp: sum = total of exp(z - max). Empty or all -inf: max = -inf.
struct MaxSum {
  float max = -kInf, sum = 0.0f;
};
inline MaxSum merge(MaxSum a, MaxSum b) {
  if (b.max == -kInf) return a;
  if (a.max == -kInf) return b;
  const float m = a.max > b.max ? a.max : b.max;
  return {m, a.sum * exp(a.max - m) + b.sum * exp(b.max - m)};
}

inline float load(const void* row, DType dtype, int64_t i) {
  return dtype == DType::kBF16 ? bf16_to_float(static_cast<const bf16*>(row)[i]) : static_cast<const float*>(row)[i];
}
inline void store(void* row, DType dtype, int64_t i, float x) {
  if (dtype == DType::kBF16)
    static_cast<bf16*>(row)[i] = float_to_bf16(x);
  else
    static_cast<float*>(row)[i] = x;
}
inline float at(ConstMatrix a, int64_t row, int64_t col) { return load(a.data, a.dtype, row * a.stride + col); }
inline void put(Matrix a, int64_t row, int64_t col, float x) { store(a.data, a.dtype, row * a.stride + col, x); }

}  // namespace weft::kernels::scalar
