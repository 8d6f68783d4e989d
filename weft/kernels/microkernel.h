// The inner tile of every product: C [rows, 16 * vectors] (+)= an ascending FMA chain over k of A(i, k) * B(k, j), accumulators
// in registers. Internal: included by *_simd.cc files only, after simd.h and before simd_end.h.
//
// A is fp32. kRows layout: A(i, k) = a[i * lda + k]. kColumns layout: A(i, k) = a[k * lda + i].
// B: the vector j of row k begins at b + k * ldb + j * vector_stride: 16 for a row-major B, the panel size for packed panels.
// C: row i begins at c + i * ldc, and 16 * vectors floats are read (kContinue, kAdd) and written: a caller with fewer columns
// passes scratch, and a B row with fewer than 16 readable columns is packed first. The bits of an element depend on its own row
// of A and column of B only, whatever the tile: one chain per element.
#pragma once

#include "weft/kernels/simd.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {

// kStore: c = the chain from +0. kContinue: c = the chain continued from c. kAdd: c = c + the chain from +0.
enum class Into { kStore, kContinue, kAdd };
enum class ALayout { kRows, kColumns };

// The largest tile that fits the registers.
#if WEFT_SIMD_TARGET == 0
inline constexpr int kTileRows = 4, kTileVectors = 1;
#elif WEFT_SIMD_TARGET == 1
inline constexpr int kTileRows = 6, kTileVectors = 1;
#else
inline constexpr int kTileRows = 12, kTileVectors = 2;
#endif

#define WEFT_UNROLL _Pragma("GCC unroll 16")

// Also asks for the C of the tile below, which callers take next: its rows are far apart, and a tile's end would wait for them.
template <int MR, int NV>
WEFT_INLINE void tile_begin(f32 (&acc)[MR][NV], const float* c, int64_t ldc, Into into) {
  WEFT_UNROLL for (int i = 0; i < MR; ++i) WEFT_UNROLL for (int j = 0; j < NV; ++j)
      __builtin_prefetch(c + (MR + i) * ldc + 16 * j, 1);
  if (into == Into::kContinue) {
    WEFT_UNROLL for (int i = 0; i < MR; ++i) WEFT_UNROLL for (int j = 0; j < NV; ++j) acc[i][j] = load(c + i * ldc + 16 * j);
  } else {
    WEFT_UNROLL for (int i = 0; i < MR; ++i) WEFT_UNROLL for (int j = 0; j < NV; ++j) acc[i][j] = zero();
  }
}

template <int MR, int NV>
WEFT_INLINE void tile_end(const f32 (&acc)[MR][NV], float* c, int64_t ldc, Into into) {
  if (into == Into::kAdd) {
    WEFT_UNROLL for (int i = 0; i < MR; ++i) WEFT_UNROLL for (int j = 0; j < NV; ++j)
        store(c + i * ldc + 16 * j, add(load(c + i * ldc + 16 * j), acc[i][j]));
  } else {
    WEFT_UNROLL for (int i = 0; i < MR; ++i) WEFT_UNROLL for (int j = 0; j < NV; ++j) store(c + i * ldc + 16 * j, acc[i][j]);
  }
}

template <int MR, int NV, ALayout kLayout>
WEFT_INLINE void tile_step(f32 (&acc)[MR][NV], const float* a, int64_t lda, const f32 (&b)[NV]) {
  WEFT_UNROLL for (int i = 0; i < MR; ++i) {
    const f32 x = set1(a[kLayout == ALayout::kRows ? i * lda : i]);
    WEFT_UNROLL for (int j = 0; j < NV; ++j) acc[i][j] = fma(x, b[j], acc[i][j]);
  }
}

template <int MR, int NV, ALayout kLayout = ALayout::kRows>
void microkernel(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t vector_stride, int64_t k, float* c,
                 int64_t ldc, Into into) {
  // A panel that comes from far caches or memory is limited by latency.
  constexpr int64_t kFetchAhead = 16 * 24;
  f32 acc[MR][NV];
  tile_begin<MR, NV>(acc, c, ldc, into);
  const int64_t step = kLayout == ALayout::kRows ? 1 : lda;
  _Pragma("GCC unroll 4") for (; k > 0; --k) {
    f32 w[NV];
    WEFT_UNROLL for (int j = 0; j < NV; ++j) {
      w[j] = load(b + j * vector_stride);
      __builtin_prefetch(b + j * vector_stride + kFetchAhead);
    }
    tile_step<MR, NV, kLayout>(acc, a, lda, w);
    a += step;
    b += ldb;
  }
  tile_end<MR, NV>(acc, c, ldc, into);
}

inline constexpr int kTileAccumulators = kTileRows * kTileVectors;

// Runs CALL with a constant R equal to `rows`, for the tiles R x NV that fit the registers.
#define WEFT_ROW_CASE(n, ...)                                                 \
  case n: {                                                                   \
    constexpr int R = n;                                                      \
    if constexpr (R <= kTileRows && R * NV <= kTileAccumulators) __VA_ARGS__; \
    break;                                                                    \
  }
#define WEFT_ROW_SWITCH(rows, ...) \
  switch (rows) {                  \
    WEFT_ROW_CASE(1, __VA_ARGS__)  \
    WEFT_ROW_CASE(2, __VA_ARGS__)  \
    WEFT_ROW_CASE(3, __VA_ARGS__)  \
    WEFT_ROW_CASE(4, __VA_ARGS__)  \
    WEFT_ROW_CASE(5, __VA_ARGS__)  \
    WEFT_ROW_CASE(6, __VA_ARGS__)  \
    WEFT_ROW_CASE(7, __VA_ARGS__)  \
    WEFT_ROW_CASE(8, __VA_ARGS__)  \
    WEFT_ROW_CASE(9, __VA_ARGS__)  \
    WEFT_ROW_CASE(10, __VA_ARGS__) \
    WEFT_ROW_CASE(11, __VA_ARGS__) \
    WEFT_ROW_CASE(12, __VA_ARGS__) \
    default: break;                \
  }

// Any number of rows up to kTileRows with rows * NV <= kTileAccumulators (so few rows may take more vectors than kTileVectors).
template <int NV, ALayout kLayout = ALayout::kRows>
void microkernel_rows(int64_t rows, const float* a, int64_t lda, const float* b, int64_t ldb, int64_t vector_stride, int64_t k,
                      float* c, int64_t ldc, Into into) {
  WEFT_ROW_SWITCH(rows, microkernel<R, NV, kLayout>(a, lda, b, ldb, vector_stride, k, c, ldc, into))
}

// A small product on the calling thread: C [m, 16 * vectors], any m and vectors, B not packed by this function.
inline void microkernel_block(int64_t m, int64_t vectors, const float* a, int64_t lda, const float* b, int64_t ldb,
                              int64_t vector_stride, int64_t k, float* c, int64_t ldc, Into into) {
  int64_t j = 0;
  for (; j + kTileVectors <= vectors; j += kTileVectors)
    for (int64_t i = 0; i < m; i += kTileRows)
      microkernel_rows<kTileVectors>(m - i < kTileRows ? m - i : kTileRows, a + i * lda, lda, b + j * vector_stride, ldb,
                                     vector_stride, k, c + i * ldc + 16 * j, ldc, into);
  if constexpr (kTileVectors > 1) {
    for (; j < vectors; ++j)
      for (int64_t i = 0; i < m; i += kTileRows)
        microkernel_rows<1>(m - i < kTileRows ? m - i : kTileRows, a + i * lda, lda, b + j * vector_stride, ldb, vector_stride, k,
                            c + i * ldc + 16 * j, ldc, into);
  }
}

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE
