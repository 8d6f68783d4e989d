// How matrix products lay out their operands, and ask for memory before they need it. Internal: included by gemm_simd.cc only,
// after microkernel.h and before simd_end.h.
#pragma once

#include "weft/kernels/microkernel.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {

namespace {

// Rows of B fetched ahead while packing: their stride defeats the prefetchers.
constexpr int64_t kFetchRows = 12;

WEFT_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

WEFT_INLINE const void* at(ConstMatrix m, int64_t row, int64_t col) {
  const int64_t i = row * m.stride + col;
  return m.dtype == DType::kF32 ? static_cast<const void*>(static_cast<const float*>(m.data) + i)
                                : static_cast<const bf16*>(m.data) + i;
}

void copy_row(const void* source, DType dtype, int64_t n, float* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, source, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  const bf16* from = static_cast<const bf16*>(source);
  for (int64_t i = 0; i < n; ++i) to[i] = bf16_to_float(from[i]);
}

// The place in a chain of `depth` at which element d is packed so that an ascending walk takes pairs odd first.
WEFT_INLINE int64_t swapped(int64_t d, int64_t depth, bool pairs) { return pairs && (d ^ 1) < depth ? d ^ 1 : d; }

WEFT_INLINE float widen(float x) { return x; }
WEFT_INLINE float widen(bf16 x) { return bf16_to_float(x); }

template <class T>
void pack_tile(const T* a, int64_t stride, int64_t rows, int64_t depth, int64_t tile, bool swap, float* to) {
  for (int64_t r = 0; r < rows; ++r, a += stride) {
    float* out = to + r;
    if (!swap) {
      for (int64_t d = 0; d < depth; ++d) out[d * tile] = widen(a[d]);
      continue;
    }
    for (int64_t d = 0; d + 1 < depth; d += 2) {
      out[d * tile] = widen(a[d + 1]);
      out[(d + 1) * tile] = widen(a[d]);
    }
    if (depth % 2) out[(depth - 1) * tile] = widen(a[depth - 1]);
  }
}

// A [rows, depth] from column `from` into fp32 tiles [depth][tile]: the inner tile then reads one stream, and no row strides of
// large powers of two collide in the caches. swap: pairs odd first.
void pack_tiles(ConstMatrix a, int64_t from, int64_t depth, int64_t rows, int64_t tile, bool swap, float* to) {
  for (int64_t i = 0; i < rows; i += tile, to += tile * depth) {
    const int64_t m = smaller(tile, rows - i);
    if (a.dtype == DType::kF32)
      pack_tile(static_cast<const float*>(at(a, i, from)), a.stride, m, depth, tile, swap, to);
    else
      pack_tile(static_cast<const bf16*>(at(a, i, from)), a.stride, m, depth, tile, swap, to);
  }
}

// A [rows, depth] given as [depth, rows], into panels [tile][depth][kTileRows]. `row` is scratch of whole tiles.
void pack_transposed(ConstMatrix a, int64_t from, int64_t depth, int64_t rows, bool pairs, float* row, float* to) {
  for (int64_t d = 0; d < depth; ++d) {
    const float* source = row;
    if (a.dtype == DType::kF32 && rows % kTileRows == 0)
      source = static_cast<const float*>(at(a, from + d, 0));
    else
      copy_row(at(a, from + d, 0), a.dtype, rows, row);
    float* out = to + swapped(d, depth, pairs) * kTileRows;
    for (int64_t i = 0; i < rows; i += kTileRows) std::memcpy(out + i * depth, source + i, kTileRows * sizeof(float));
  }
}

// The same as pairs for the dot product: [tile][ceil(depth / 2)][kTileRows][2].
void pack_transposed_pairs(ConstMatrix a, int64_t from, int64_t depth, int64_t rows, bf16* to) {
  for (int64_t i = 0; i < rows; i += kTileRows) {
    const int64_t m = smaller(kTileRows, rows - i);
    for (int64_t d = 0; d < depth; ++d) {
      const bf16* source = static_cast<const bf16*>(at(a, from + d, i));
      for (int64_t r = 0; r < m; ++r) to[d / 2 * 2 * kTileRows + 2 * r + d % 2] = source[r];
    }
    to += (depth + 1) / 2 * 2 * kTileRows;
  }
}

// `panels` panels [depth][16] of B from column col, zero-padded.
void pack_strip(ConstMatrix b, int64_t from, int64_t depth, int64_t col, int64_t cols, int64_t panels, bool pairs, float* to) {
  for (int64_t d = 0; d < depth; ++d) {
    float* row = to + swapped(d, depth, pairs) * 16;
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t at_col = col + 16 * p, width = smaller(16, cols - at_col);
      const void* source = at(b, from + d, at_col);
      __builtin_prefetch(at(b, from + d + kFetchRows, at_col));
      float* out = row + p * depth * 16;
      if (b.dtype == DType::kF32) {
        store(out, width == 16 ? load(static_cast<const float*>(source)) : load_first(static_cast<const float*>(source), width));
      } else if (width == 16) {
        store(out, load_bf16(static_cast<const bf16*>(source)));
      } else {
        bf16 padded[16] = {};
        std::memcpy(padded, source, static_cast<size_t>(width) * sizeof(bf16));
        store(out, load_bf16(padded));
      }
    }
  }
}

void pack_strip_pairs(ConstMatrix b, int64_t from, int64_t depth, int64_t col, int64_t cols, int64_t panels, bf16* to) {
  const int64_t panel = (depth + 1) / 2 * 32;
  for (int64_t d = 0; d < depth; ++d)
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t at_col = col + 16 * p, width = smaller(16, cols - at_col);
      const bf16* source = static_cast<const bf16*>(at(b, from + d, at_col));
      bf16* out = to + p * panel + d / 2 * 32 + d % 2;
      for (int64_t j = 0; j < 16; ++j) out[2 * j] = j < width ? source[j] : bf16{0};
    }
}

// Cache lines that will be wanted soon, asked for a few at a time between tiles: memory that others use too answers late, and a
// panel's first tile would wait for every line. `calls`: how often fetch() will be called; with one tile there is no time to use.
class Ahead {
 public:
  Ahead(const void* data, int64_t rows, int64_t row_bytes, int64_t stride_bytes, int64_t calls)
      : row_(static_cast<const char*>(data)), rows_(calls > 1 ? rows : 0), row_bytes_(row_bytes), stride_(stride_bytes) {
    per_call_ = rows * ((row_bytes + 63) / 64) / (calls > 1 ? calls : 1) + 1;
  }
  void fetch() {
    for (int64_t n = per_call_; n > 0 && rows_ > 0; --n) {
      __builtin_prefetch(row_ + at_, 0, 2);
      at_ += 64;
      if (at_ >= row_bytes_) {
        at_ = 0;
        row_ += stride_;
        --rows_;
      }
    }
  }

 private:
  const char* row_;
  int64_t rows_, row_bytes_, stride_, at_ = 0, per_call_ = 0;
};

}  // namespace

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE
