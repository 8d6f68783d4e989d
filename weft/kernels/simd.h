// Sixteen fp32 lanes, the same on every target: the unit in which the numerics contract counts lanes (docs/numerics.md).
// Included by *_simd.cc files only, last, after every other header: it opens a target pragma, so that only code below it uses
// wider instructions (simd_end.h closes it). WEFT_SIMD_TARGET is 0 portable, 1 AVX2, 2 AVX-512, 3 AVX-512 with BF16.
//
// Only operations with one IEEE meaning are here: no approximate reciprocal, no reassociating reduction.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "weft/base/dtype.h"

#if WEFT_SIMD_TARGET == 0
#define WEFT_SIMD_NAMESPACE portable
#pragma GCC push_options
#elif WEFT_SIMD_TARGET == 1
#define WEFT_SIMD_NAMESPACE avx2
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#elif WEFT_SIMD_TARGET == 2
#define WEFT_SIMD_NAMESPACE avx512
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#else
#define WEFT_SIMD_NAMESPACE avx512_bf16
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")
#endif

// The AVX-512 intrinsics of g++ 12 build "undefined" operands by self-initialisation, which it then warns of wherever they are inlined.
#if WEFT_SIMD_TARGET >= 2
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define WEFT_INLINE inline __attribute__((always_inline))

namespace weft::kernels::WEFT_SIMD_NAMESPACE {

inline constexpr int64_t kLanes = 16;

// f32: sixteen floats. m16: sixteen booleans. Memory operands need no alignment.
#if WEFT_SIMD_TARGET == 0

struct f32 { float v[16]; };
struct m16 { uint32_t bits; };
#define WEFT_EACH(expression)            \
  f32 r;                                 \
  for (int i = 0; i < 16; ++i) r.v[i] = (expression); \
  return r
#define WEFT_EACH_MASK(expression)       \
  m16 r{0};                              \
  for (int i = 0; i < 16; ++i) r.bits |= static_cast<uint32_t>(expression) << i; \
  return r
WEFT_INLINE f32 zero() { WEFT_EACH(0.0f); }
WEFT_INLINE f32 set1(float x) { WEFT_EACH(x); }
WEFT_INLINE f32 load(const float* p) { WEFT_EACH(p[i]); }
WEFT_INLINE void store(float* p, f32 a) { std::memcpy(p, a.v, sizeof(a.v)); }
WEFT_INLINE f32 add(f32 a, f32 b) { WEFT_EACH(a.v[i] + b.v[i]); }
WEFT_INLINE f32 sub(f32 a, f32 b) { WEFT_EACH(a.v[i] - b.v[i]); }
WEFT_INLINE f32 mul(f32 a, f32 b) { WEFT_EACH(a.v[i] * b.v[i]); }
WEFT_INLINE f32 div(f32 a, f32 b) { WEFT_EACH(a.v[i] / b.v[i]); }
WEFT_INLINE f32 fma(f32 a, f32 b, f32 c) { WEFT_EACH(std::fma(a.v[i], b.v[i], c.v[i])); }
WEFT_INLINE f32 sqrt(f32 a) { WEFT_EACH(std::sqrt(a.v[i])); }
// a > b ? a : b in every lane (b where either is NaN), as the x86 instruction.
WEFT_INLINE f32 max(f32 a, f32 b) { WEFT_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
WEFT_INLINE f32 min(f32 a, f32 b) { WEFT_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
WEFT_INLINE m16 less(f32 a, f32 b) { WEFT_EACH_MASK(a.v[i] < b.v[i]); }
WEFT_INLINE m16 equal(f32 a, f32 b) { WEFT_EACH_MASK(a.v[i] == b.v[i]); }
WEFT_INLINE m16 is_nan(f32 a) { WEFT_EACH_MASK(a.v[i] != a.v[i]); }
WEFT_INLINE m16 first(int64_t n) { return {n >= 16 ? 0xffffu : (1u << n) - 1u}; }  // lanes 0..n-1
WEFT_INLINE f32 select(m16 m, f32 yes, f32 no) { WEFT_EACH((m.bits >> i & 1) ? yes.v[i] : no.v[i]); }
WEFT_INLINE f32 round_even(f32 a) { WEFT_EACH(std::nearbyint(a.v[i])); }
// 2^k for integral k in [-126, 127], by building the exponent.
WEFT_INLINE f32 exp2_int(f32 k) { WEFT_EACH(std::bit_cast<float>((static_cast<int32_t>(k.v[i]) + 127) << 23)); }
WEFT_INLINE f32 and_bits(f32 a, uint32_t mask) { WEFT_EACH(std::bit_cast<float>(std::bit_cast<uint32_t>(a.v[i]) & mask)); }
WEFT_INLINE f32 or_bits(f32 a, uint32_t mask) { WEFT_EACH(std::bit_cast<float>(std::bit_cast<uint32_t>(a.v[i]) | mask)); }
// The exponent field of positive normal numbers as a float: floor(log2(a)).
WEFT_INLINE f32 exponent(f32 a) { WEFT_EACH(static_cast<float>(static_cast<int32_t>(std::bit_cast<uint32_t>(a.v[i]) >> 23) - 127)); }
WEFT_INLINE f32 load_bf16(const bf16* p) { WEFT_EACH(bf16_to_float(p[i])); }
WEFT_INLINE void store_bf16(bf16* p, f32 a) { for (int i = 0; i < 16; ++i) p[i] = float_to_bf16(a.v[i]); }
// Sixteen pairs (even, odd) of bf16 at p: the even elements, the odd elements.
WEFT_INLINE f32 load_even(const bf16* p) { WEFT_EACH(bf16_to_float(p[2 * i])); }
WEFT_INLINE f32 load_odd(const bf16* p) { WEFT_EACH(bf16_to_float(p[2 * i + 1])); }
#undef WEFT_EACH
#undef WEFT_EACH_MASK

#elif WEFT_SIMD_TARGET == 1

struct f32 { __m256 lo, hi; };
struct m16 { __m256 lo, hi; };
WEFT_INLINE f32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
WEFT_INLINE f32 set1(float x) { const __m256 v = _mm256_set1_ps(x); return {v, v}; }
WEFT_INLINE f32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
WEFT_INLINE void store(float* p, f32 a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
WEFT_INLINE f32 add(f32 a, f32 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
WEFT_INLINE f32 sub(f32 a, f32 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
WEFT_INLINE f32 mul(f32 a, f32 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
WEFT_INLINE f32 div(f32 a, f32 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
WEFT_INLINE f32 fma(f32 a, f32 b, f32 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
WEFT_INLINE f32 sqrt(f32 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
WEFT_INLINE f32 max(f32 a, f32 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
WEFT_INLINE f32 min(f32 a, f32 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
WEFT_INLINE m16 less(f32 a, f32 b) { return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)}; }
WEFT_INLINE m16 equal(f32 a, f32 b) { return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)}; }
WEFT_INLINE m16 is_nan(f32 a) { return {_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)}; }
WEFT_INLINE m16 first(int64_t n) {
  const __m256i count = _mm256_set1_epi32(static_cast<int32_t>(n > 16 ? 16 : n));
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)))};
}
WEFT_INLINE f32 select(m16 m, f32 yes, f32 no) { return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)}; }
WEFT_INLINE f32 round_even(f32 a) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kMode), _mm256_round_ps(a.hi, kMode)};
}
WEFT_INLINE __m256 exp2_int_half(__m256 k) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvttps_epi32(k), _mm256_set1_epi32(127)), 23));
}
WEFT_INLINE f32 exp2_int(f32 k) { return {exp2_int_half(k.lo), exp2_int_half(k.hi)}; }
WEFT_INLINE f32 and_bits(f32 a, uint32_t mask) {
  const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(mask)));
  return {_mm256_and_ps(a.lo, m), _mm256_and_ps(a.hi, m)};
}
WEFT_INLINE f32 or_bits(f32 a, uint32_t mask) {
  const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(mask)));
  return {_mm256_or_ps(a.lo, m), _mm256_or_ps(a.hi, m)};
}
WEFT_INLINE __m256 exponent_half(__m256 a) {
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(_mm256_castps_si256(a), 23), _mm256_set1_epi32(127)));
}
WEFT_INLINE f32 exponent(f32 a) { return {exponent_half(a.lo), exponent_half(a.hi)}; }
WEFT_INLINE __m256 load_bf16_half(const bf16* p) {
  __m128i raw;
  std::memcpy(&raw, p, 16);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
WEFT_INLINE f32 load_bf16(const bf16* p) { return {load_bf16_half(p), load_bf16_half(p + 8)}; }
WEFT_INLINE void store_bf16_half(bf16* p, __m256 a) {
  const __m256i u = _mm256_castps_si256(a);
  const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), lsb), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  const __m256i bits = _mm256_blendv_epi8(rounded, quiet, nan);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  std::memcpy(p, &packed, 16);
}
WEFT_INLINE void store_bf16(bf16* p, f32 a) { store_bf16_half(p, a.lo); store_bf16_half(p + 8, a.hi); }
WEFT_INLINE f32 load_even(const bf16* p) {
  __m256i a, b;
  std::memcpy(&a, p, 32);
  std::memcpy(&b, p + 16, 32);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
}
WEFT_INLINE f32 load_odd(const bf16* p) {
  __m256i a, b;
  std::memcpy(&a, p, 32);
  std::memcpy(&b, p + 16, 32);
  const __m256i high = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(a, high)), _mm256_castsi256_ps(_mm256_and_si256(b, high))};
}

#else

struct f32 { __m512 v; };
struct m16 { __mmask16 m; };
WEFT_INLINE f32 zero() { return {_mm512_setzero_ps()}; }
WEFT_INLINE f32 set1(float x) { return {_mm512_set1_ps(x)}; }
WEFT_INLINE f32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
WEFT_INLINE void store(float* p, f32 a) { _mm512_storeu_ps(p, a.v); }
WEFT_INLINE f32 add(f32 a, f32 b) { return {_mm512_add_ps(a.v, b.v)}; }
WEFT_INLINE f32 sub(f32 a, f32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
WEFT_INLINE f32 mul(f32 a, f32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
WEFT_INLINE f32 div(f32 a, f32 b) { return {_mm512_div_ps(a.v, b.v)}; }
WEFT_INLINE f32 fma(f32 a, f32 b, f32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
WEFT_INLINE f32 sqrt(f32 a) { return {_mm512_sqrt_ps(a.v)}; }
WEFT_INLINE f32 max(f32 a, f32 b) { return {_mm512_max_ps(a.v, b.v)}; }
WEFT_INLINE f32 min(f32 a, f32 b) { return {_mm512_min_ps(a.v, b.v)}; }
WEFT_INLINE m16 less(f32 a, f32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
WEFT_INLINE m16 equal(f32 a, f32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
WEFT_INLINE m16 is_nan(f32 a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
WEFT_INLINE m16 first(int64_t n) { return {static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1u)}; }
WEFT_INLINE f32 select(m16 m, f32 yes, f32 no) { return {_mm512_mask_blend_ps(m.m, no.v, yes.v)}; }
WEFT_INLINE f32 round_even(f32 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
WEFT_INLINE f32 exp2_int(f32 k) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvttps_epi32(k.v), _mm512_set1_epi32(127)), 23))};
}
WEFT_INLINE f32 and_bits(f32 a, uint32_t mask) {
  return {_mm512_castsi512_ps(_mm512_and_epi32(_mm512_castps_si512(a.v), _mm512_set1_epi32(static_cast<int32_t>(mask))))};
}
WEFT_INLINE f32 or_bits(f32 a, uint32_t mask) {
  return {_mm512_castsi512_ps(_mm512_or_epi32(_mm512_castps_si512(a.v), _mm512_set1_epi32(static_cast<int32_t>(mask))))};
}
WEFT_INLINE f32 exponent(f32 a) {
  return {_mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_srli_epi32(_mm512_castps_si512(a.v), 23), _mm512_set1_epi32(127)))};
}
WEFT_INLINE f32 load_bf16(const bf16* p) {
  __m256i raw;
  std::memcpy(&raw, p, 32);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}
WEFT_INLINE void store_bf16(bf16* p, f32 a) {
  const __m512i u = _mm512_castps_si512(a.v);
  const __m512i lsb = _mm512_and_epi32(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), lsb), 16);
  const __m512i quiet = _mm512_or_epi32(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
  const __m256i packed = _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan(a).m, rounded, quiet));
  std::memcpy(p, &packed, 32);
}
WEFT_INLINE f32 load_even(const bf16* p) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))}; }
WEFT_INLINE f32 load_odd(const bf16* p) {
  return {_mm512_castsi512_ps(_mm512_and_epi32(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u))))};
}

#endif

// Partial vectors: lanes n.. are `fill` on load and untouched on store. 0 <= n <= 16.
WEFT_INLINE f32 load_first(const float* p, int64_t n, float fill = 0.0f) {
  float buffer[16];
  for (int64_t i = 0; i < 16; ++i) buffer[i] = i < n ? p[i] : fill;
  return load(buffer);
}
WEFT_INLINE void store_first(float* p, f32 a, int64_t n) {
  float buffer[16];
  store(buffer, a);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}

// The one lane tree: ((0+8)+(4+12)) + ... by halves of 8, 4, 2, 1. Rule 4.
WEFT_INLINE float sum_lanes(f32 a) {
  float v[16];
  store(v, a);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) v[i] = v[i] + v[i + half];
  return v[0];
}
WEFT_INLINE float max_lanes(f32 a) {
  float v[16];
  store(v, a);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) v[i] = v[i] > v[i + half] ? v[i] : v[i + half];
  return v[0];
}

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE
