// The inner tile over a B of bf16 pairs: panels [ceil(k / 2), 16, 2], pair p holding elements 2p and 2p + 1 of sixteen columns.
// Internal, as microkernel.h (which states A, C and `into`).
#pragma once

#include "weft/kernels/microkernel.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {

// A fp32 in rows. Pairs are expanded in registers. Odd first: the order of bf16 x bf16 chains; even first: plain ascending (fp32
// x bf16).
enum class PairOrder { kOddFirst, kEvenFirst };

template <int MR, int NV, PairOrder kOrder>
void microkernel_pairs(const float* a, int64_t lda, const bf16* b, int64_t vector_stride, int64_t k, float* c, int64_t ldc,
                       Into into) {
  constexpr int64_t kFirst = kOrder == PairOrder::kOddFirst ? 1 : 0;
  f32 acc[MR][NV];
  tile_begin<MR, NV>(acc, c, ldc, into);
  for (; k > 1; k -= 2) {
    f32 w[NV];
    WEFT_UNROLL for (int j = 0; j < NV; ++j) w[j] = kFirst ? load_odd(b + j * vector_stride) : load_even(b + j * vector_stride);
    tile_step<MR, NV, ALayout::kRows>(acc, a + kFirst, lda, w);
    asm volatile("" ::: "memory");  // keeps the loads of the second half below: hoisted, they spill accumulators
    WEFT_UNROLL for (int j = 0; j < NV; ++j) w[j] = kFirst ? load_even(b + j * vector_stride) : load_odd(b + j * vector_stride);
    tile_step<MR, NV, ALayout::kRows>(acc, a + 1 - kFirst, lda, w);
    a += 2;
    b += 32;
  }
  if (k > 0) {
    f32 w[NV];
    WEFT_UNROLL for (int j = 0; j < NV; ++j) w[j] = load_even(b + j * vector_stride);
    tile_step<MR, NV, ALayout::kRows>(acc, a, lda, w);
  }
  tile_end<MR, NV>(acc, c, ldc, into);
}

template <int NV, PairOrder kOrder>
void microkernel_pairs_rows(int64_t rows, const float* a, int64_t lda, const bf16* b, int64_t vector_stride, int64_t k, float* c,
                            int64_t ldc, Into into) {
  WEFT_ROW_SWITCH(rows, microkernel_pairs<R, NV, kOrder>(a, lda, b, vector_stride, k, c, ldc, into))
}

#if WEFT_SIMD_TARGET == 3
inline constexpr bool kHasDot = true;
// acc, then + odd * odd, then + even * even in every lane: the pair a over the sixteen pairs at b.
WEFT_INLINE f32 dot_pair(f32 acc, const bf16* a, const bf16* b) {
  int32_t pair;
  std::memcpy(&pair, a, 4);
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)_mm512_loadu_si512(b))};
}
#else
inline constexpr bool kHasDot = false;
WEFT_INLINE f32 dot_pair(f32 acc, const bf16* a, const bf16* b) {
  return fma(set1(bf16_to_float(a[0])), load_even(b), fma(set1(bf16_to_float(a[1])), load_odd(b), acc));
}
#endif

// A bf16. kRows: A(i, k) = a[i * lda + k]. kColumns: pairs, A(i, 2p + s) = a[p * lda + 2 * i + s].
template <int MR, int NV, ALayout kLayout>
void microkernel_dot(const bf16* a, int64_t lda, const bf16* b, int64_t vector_stride, int64_t k, float* c, int64_t ldc,
                     Into into) {
  const int64_t row = kLayout == ALayout::kRows ? lda : 2, step = kLayout == ALayout::kRows ? 2 : lda;
  f32 acc[MR][NV];
  tile_begin<MR, NV>(acc, c, ldc, into);
  for (; k > 1; k -= 2) {
    WEFT_UNROLL for (int i = 0; i < MR; ++i) WEFT_UNROLL for (int j = 0; j < NV; ++j) acc[i][j] =
        dot_pair(acc[i][j], a + i * row, b + j * vector_stride);
    a += step;
    b += 32;
  }
  if (k > 0) {
    WEFT_UNROLL for (int i = 0; i < MR; ++i) WEFT_UNROLL for (int j = 0; j < NV; ++j) acc[i][j] =
        fma(set1(bf16_to_float(a[i * row])), load_even(b + j * vector_stride), acc[i][j]);
  }
  tile_end<MR, NV>(acc, c, ldc, into);
}

template <int NV, ALayout kLayout>
void microkernel_dot_rows(int64_t rows, const bf16* a, int64_t lda, const bf16* b, int64_t vector_stride, int64_t k, float* c,
                          int64_t ldc, Into into) {
  WEFT_ROW_SWITCH(rows, microkernel_dot<R, NV, kLayout>(a, lda, b, vector_stride, k, c, ldc, into))
}

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE
