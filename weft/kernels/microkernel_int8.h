// The inner tile over a B of int8: panels [k][16], widened in registers. Internal, as microkernel.h (which states A, C and
// `into`). A fp32 in rows; the chain is plain ascending. Scales come after it.
#pragma once

#include "weft/kernels/microkernel.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {

#if WEFT_SIMD_TARGET == 0
WEFT_INLINE f32 load_int8(const int8_t* p) {
  f32 r;
  for (int i = 0; i < 16; ++i) r.v[i] = static_cast<float>(p[i]);
  return r;
}
#elif WEFT_SIMD_TARGET == 1
WEFT_INLINE f32 load_int8(const int8_t* p) {
  const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)),
                high = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high))};
}
#else
WEFT_INLINE f32 load_int8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
#endif

template <int MR, int NV>
WEFT_INLINE void int8_step(f32 (&acc)[MR][NV], const float* a, int64_t lda, const int8_t* b, int64_t vector_stride) {
  f32 w[NV];
  WEFT_UNROLL for (int j = 0; j < NV; ++j) w[j] = load_int8(b + j * vector_stride);
  tile_step<MR, NV, ALayout::kRows>(acc, a, lda, w);
}

template <int MR, int NV>
void microkernel_int8(const float* a, int64_t lda, const int8_t* b, int64_t vector_stride, int64_t k, float* c, int64_t ldc,
                      Into into) {
  constexpr int64_t kFetchAhead = 16 * 64;  // bytes: 64 steps, as far as for fp32 panels in time
  f32 acc[MR][NV];
  tile_begin<MR, NV>(acc, c, ldc, into);
  for (; k >= 4; k -= 4, a += 4, b += 64) {  // a line of each panel
    WEFT_UNROLL for (int j = 0; j < NV; ++j) __builtin_prefetch(b + j * vector_stride + kFetchAhead);
    WEFT_UNROLL for (int s = 0; s < 4; ++s) int8_step<MR, NV>(acc, a + s, lda, b + 16 * s, vector_stride);
  }
  for (; k > 0; --k, ++a, b += 16) int8_step<MR, NV>(acc, a, lda, b, vector_stride);
  tile_end<MR, NV>(acc, c, ldc, into);
}

template <int NV>
void microkernel_int8_rows(int64_t rows, const float* a, int64_t lda, const int8_t* b, int64_t vector_stride, int64_t k, float* c,
                           int64_t ldc, Into into) {
  WEFT_ROW_SWITCH(rows, microkernel_int8<R, NV>(a, lda, b, vector_stride, k, c, ldc, into))
}

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE
