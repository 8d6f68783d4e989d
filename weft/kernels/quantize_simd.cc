#include "weft/kernels/quantize_simd.h"

#include <bit>

#include "weft/kernels/simd.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {
namespace {

// Sixteen integral floats within [-127, 127].
#if WEFT_SIMD_TARGET == 0
WEFT_INLINE void store_i8(int8_t* p, f32 a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(static_cast<int32_t>(a.v[i]));
}
#elif WEFT_SIMD_TARGET == 1
WEFT_INLINE __m128i to_i16(__m256 a) {
  const __m256i w = _mm256_cvtps_epi32(a);
  return _mm_packs_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
}
WEFT_INLINE void store_i8(int8_t* p, f32 a) {
  const __m128i packed = _mm_packs_epi16(to_i16(a.lo), to_i16(a.hi));
  std::memcpy(p, &packed, 16);
}
#else
WEFT_INLINE void store_i8(int8_t* p, f32 a) {
  const __m128i packed = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v));
  std::memcpy(p, &packed, 16);
}
#endif

// Bits of magnitudes ascend as the magnitudes do, Infinity and NaN above all.
float max_magnitude(const float* x, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    bits &= 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  return std::bit_cast<float>(most);
}

WEFT_INLINE f32 quotient(f32 x, f32 scale) { return max(min(round_even(div(x, scale)), set1(127.0f)), set1(-127.0f)); }

void quantize(const float* x, float scale, int8_t* q, int64_t n) {
  const f32 s = set1(scale);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store_i8(q + i, quotient(load(x + i), s));
  if (i == n) return;
  int8_t last[16];
  store_i8(last, quotient(load_first(x + i, n - i), s));
  std::memcpy(q + i, last, static_cast<size_t>(n - i));
}

}  // namespace

extern const QuantizeTable kQuantize;
const QuantizeTable kQuantize = {max_magnitude, quantize};

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE

#include "weft/kernels/simd_end.h"
