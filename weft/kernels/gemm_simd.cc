// Blocks of the matrix products (gemm_table.h): widening, packing and the loops around the inner tiles.
#include "weft/kernels/gemm.h"
#include "weft/kernels/gemm_table.h"
// After all others: opens the target.
#include "weft/kernels/simd.h"
// and what needs it.
#include "weft/kernels/gemm_pack.h"
#include "weft/kernels/microkernel_bf16.h"
#include "weft/kernels/microkernel_int8.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {

namespace {

// A block of k that keeps a panel (16 KiB) and a tile's rows in L1, and a block of A in L2.
constexpr int64_t kDepthBlock = 256;
constexpr int64_t kBlockFloats = 64 * 1024;
// B panels packed at a time for gradients: their source rows are then read in runs of whole cache lines.
constexpr int64_t kStripPanels = 4;

// The vectors a tile of `rows` takes at once: more for few rows, for which memory is the limit and more streams are faster.
WEFT_INLINE int64_t vectors_for(int64_t rows, int64_t left) {
  if (left >= 4 && rows * 4 <= kTileAccumulators) return 4;
  if (left >= 2 && rows * 2 <= kTileAccumulators) return 2;
  return left < kTileVectors ? left : kTileVectors;
}

// The rows of equal tiles, at most kTileRows.
WEFT_INLINE int64_t even_tile(int64_t rows) {
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  return tiles ? (rows + tiles - 1) / tiles : 1;
}

// How the operands of a forward block meet.
enum class Form { kF32, kPairs, kMixed, kDot, kInt8 };

struct Operands {
  Form form;
  const void* a;  // bf16 for kDot, else fp32
  int64_t lda;
  int64_t tiled;      // 0, or the depth of A laid out as tiles (pack_tiles); lda is then the rows of a tile
  const void* panel;  // of the first vector
  int64_t panel_stride;
  bool expand;  // bf16 and int8 panels are expanded block by block, A being laid out in that order; else in registers
};

template <int NV>
void forward_tile(const Operands& o, int64_t row, int64_t rows, int64_t a_depth, int64_t b_depth, int64_t depth, float* c,
                  int64_t ldc, Into into) {
  const int64_t a_at = o.tiled ? row * o.tiled + a_depth * o.lda : row * o.lda + a_depth, b_at = b_depth * 16;
  const float* a = static_cast<const float*>(o.a) + a_at;
  switch (o.form) {
    case Form::kF32: {
      const float* b = static_cast<const float*>(o.panel) + b_at;
      if (o.tiled)
        microkernel_rows<NV, ALayout::kColumns>(rows, a, o.lda, b, 16, o.panel_stride, depth, c, ldc, into);
      else
        microkernel_rows<NV>(rows, a, o.lda, b, 16, o.panel_stride, depth, c, ldc, into);
      break;
    }
    case Form::kPairs:
      microkernel_pairs_rows<NV, PairOrder::kOddFirst>(rows, a, o.lda, static_cast<const bf16*>(o.panel) + b_at, o.panel_stride,
                                                       depth, c, ldc, into);
      break;
    case Form::kMixed:
      microkernel_pairs_rows<NV, PairOrder::kEvenFirst>(rows, a, o.lda, static_cast<const bf16*>(o.panel) + b_at, o.panel_stride,
                                                        depth, c, ldc, into);
      break;
    case Form::kInt8:
      microkernel_int8_rows<NV>(rows, a, o.lda, static_cast<const int8_t*>(o.panel) + b_at, o.panel_stride, depth, c, ldc, into);
      break;
    case Form::kDot:
      if constexpr (kHasDot)
        microkernel_dot_rows<NV, ALayout::kRows>(rows, static_cast<const bf16*>(o.a) + a_at, o.lda,
                                                 static_cast<const bf16*>(o.panel) + b_at, o.panel_stride, depth, c, ldc, into);
      break;
  }
}

// Expands `depth` elements of k of `vectors` panels of int8 or of bf16 pairs to fp32 panels [depth][16], each pair odd first or
// in order.
void expand_panels(const Operands& o, int64_t vectors, int64_t begin, int64_t depth, bool odd_first, float* to) {
  for (int64_t j = 0; j < vectors; ++j) {
    if (o.form == Form::kInt8) {
      const int8_t* from = static_cast<const int8_t*>(o.panel) + j * o.panel_stride + begin * 16;
      for (int64_t d = 0; d < depth; ++d, from += 16, to += 16) store(to, load_int8(from));
      continue;
    }
    const bf16* from = static_cast<const bf16*>(o.panel) + j * o.panel_stride + begin * 16;
    for (int64_t d = 0; d + 1 < depth; d += 2, from += 32, to += 32) {
      store(to, odd_first ? load_odd(from) : load_even(from));
      store(to + 16, odd_first ? load_even(from) : load_odd(from));
    }
    if (depth % 2) {
      store(to, load_even(from));
      to += 16;
    }
  }
}

// One chain of all rows over [begin, end) of k for `vectors` panels. a_begin: the k at which o.a starts.
void forward_chain(const Operands& o, int64_t vectors, int64_t rows, int64_t begin, int64_t end, int64_t a_begin, float* c,
                   int64_t ldc, Into into) {
  const int64_t element = o.form == Form::kF32 ? 4 : o.form == Form::kInt8 ? 1 : 2;
  const int64_t block = rows <= kTileRows ? end - begin : kDepthBlock;
  const int64_t step = even_tile(rows);
  for (int64_t d = begin; d < end; d += block) {
    const int64_t depth = smaller(block, end - d);
    Operands here = o;
    int64_t b_depth = d;
    if (o.expand) {
      float* wide = scratch(Scratch::kB, vectors * 16 * kDepthBlock);
      expand_panels(o, vectors, d, depth, o.form == Form::kPairs, wide);
      here.form = Form::kF32;
      here.panel = wide;
      here.panel_stride = 16 * depth;
      b_depth = 0;
    }
    // Next: the block of k below, or the first one of the panels to the right.
    const bool below = d + depth < end;
    const int64_t next = below ? (d + depth) * 16 : vectors * o.panel_stride + begin * 16,
                  rest = below ? end - d - depth : end - begin;
    Ahead ahead(static_cast<const char*>(o.panel) + next * element, vectors, smaller(block, rest) * 16 * element,
                o.panel_stride * element, (rows + step - 1) / step);
    for (int64_t i = 0; i < rows; i += step) {
      ahead.fetch();
      const int64_t m = smaller(step, rows - i);
      float* out = c + i * ldc;
      if (vectors == 1) forward_tile<1>(here, i, m, d - a_begin, b_depth, depth, out, ldc, into);
      if (vectors == 2) forward_tile<2>(here, i, m, d - a_begin, b_depth, depth, out, ldc, into);
      if (vectors == 4) forward_tile<4>(here, i, m, d - a_begin, b_depth, depth, out, ldc, into);
    }
    into = Into::kContinue;
  }
}

// The chains of a span and their tree, for `vectors` panels: a binary counter of partial sums in scratch. Returns the sum.
// `scales` of the outputs, where not null, multiply each leaf.
float* forward_leaves(const Operands& o, int64_t vectors, int64_t rows, LeafSpan span, const float* scales) {
  const int64_t ldc = 16 * vectors, size = rows * ldc;
  float* stack = scratch(Scratch::kTree, 4 * size);
  int64_t depth = 0;
  for (int leaf = 0; leaf < span.count; ++leaf) {
    float* top = stack + depth * size;
    const int64_t begin = span.begin(leaf), end = span.begin(leaf + 1);
    if (begin == end) std::memset(top, 0, static_cast<size_t>(size) * sizeof(float));
    forward_chain(o, vectors, rows, begin, end, 0, top, ldc, Into::kStore);
    for (int64_t i = 0; scales && i < size; i += 16) store(top + i, mul(load(top + i), load(scales + i % ldc)));
    for (int done = leaf; done & 1; done >>= 1, --depth) {
      float* left = stack + (depth - 1) * size;
      const float* right = stack + depth * size;
      for (int64_t i = 0; i < size; i += 16) store(left + i, add(load(left + i), load(right + i)));
    }
    ++depth;
  }
  return stack;
}

// y[:, col : col + 16 * vectors) = c (of one chain of int8 weights, scaled) + bias, rounded, cut at n. c may be y itself.
void finish(const ForwardBlock& t, const float* c, int64_t ldc, int64_t col, int64_t vectors) {
  for (int64_t j = 0; j < vectors; ++j) {
    const int64_t at_col = col + 16 * j, width = smaller(16, t.n - at_col);
    const f32 bias = t.bias ? load_first(t.bias + at_col, width) : zero();
    const bool scaled = t.scales && t.leaves.count == 0;
    const f32 scale = scaled ? load(t.scales + at_col) : zero();
    for (int64_t i = 0; i < t.x.rows; ++i) {
      f32 v = load(c + i * ldc + 16 * j);
      if (scaled) v = mul(v, scale);
      if (t.bias) v = add(v, bias);
      const int64_t to = i * t.y.stride + at_col;
      if (t.y.dtype == DType::kF32) {
        float* y = static_cast<float*>(t.y.data) + to;
        if (width == 16) {
          store(y, v);
        } else {
          store_first(y, v, width);
        }
      } else if (width == 16) {
        store_bf16(static_cast<bf16*>(t.y.data) + to, v);
      } else {
        bf16 rounded[16];
        store_bf16(rounded, v);
        std::memcpy(static_cast<bf16*>(t.y.data) + to, rounded, static_cast<size_t>(width) * sizeof(bf16));
      }
    }
  }
}

void forward(const ForwardBlock& t) {
  const int64_t rows = t.x.rows, k = t.x.cols;
  const bool x_bf16 = t.x.dtype == DType::kBF16, w_bf16 = t.w_dtype == DType::kBF16;
  Operands o{};
  o.form = t.w_dtype == DType::kI8 ? Form::kInt8
           : !w_bf16               ? Form::kF32
           : !x_bf16               ? Form::kMixed
           : kHasDot               ? Form::kDot
                                   : Form::kPairs;
  o.panel_stride = panel_elements(t.w_dtype, k);
  const int64_t panel_bytes = o.panel_stride * dtype_bytes(t.w_dtype);
  // From a few tiles on, A is laid out as tiles and bf16 panels are expanded once: in registers they cost instructions in each
  // tile.
  const bool fp32_a = o.form != Form::kDot, tiled = fp32_a && rows > 2 * kTileRows, copy = fp32_a && (tiled || x_bf16);
  o.expand = tiled && o.form != Form::kF32;
  const bool swap = o.expand && o.form == Form::kPairs;
  const bool leaves = t.leaves.count > 0;
  int64_t group = k;
  if (copy && !leaves && rows * k > kBlockFloats) group = kDepthBlock * (1 + kBlockFloats / (rows * kDepthBlock));
  const int64_t cols = 16 * (t.last_panel - t.first_panel);
  const bool all_direct = t.y.dtype == DType::kF32 && !leaves && 16 * t.last_panel <= t.n;
  float* c = nullptr;
  int64_t ldc = t.y.stride;
  if (all_direct) {
    c = static_cast<float*>(t.y.data) + 16 * t.first_panel;
  } else if (!leaves) {
    c = scratch(Scratch::kC, rows * cols);
    ldc = cols;
  }
  for (int64_t g = 0; g < k || g == 0; g += group) {
    const int64_t end = smaller(k, g + group);
    o.a = t.x.data;
    o.lda = t.x.stride;
    if (tiled) {
      o.lda = even_tile(rows);
      o.tiled = end - g;
      float* a = scratch(Scratch::kA, (rows + o.lda) * o.tiled);
      pack_tiles(t.x, g, o.tiled, rows, o.lda, swap, a);
      o.a = a;
    } else if (copy) {
      o.lda = (end - g + 15) / 16 * 16 + 16;
      float* a = scratch(Scratch::kA, rows * o.lda);
      for (int64_t i = 0; i < rows; ++i) copy_row(at(t.x, i, g), t.x.dtype, end - g, a + i * o.lda);
      o.a = a;
    } else if (g > 0) {
      o.a = at(t.x, 0, g);
    }
    for (int64_t p = t.first_panel, v = 0; p < t.last_panel; p += v) {
      v = vectors_for(rows, t.last_panel - p);
      o.panel = static_cast<const char*>(t.panels) + p * panel_bytes;
      if (leaves) {
        finish(t, forward_leaves(o, v, rows, t.leaves, t.scales ? t.scales + 16 * p : nullptr), 16 * v, 16 * p, v);
        continue;
      }
      float* out = c + 16 * (p - t.first_panel);
      if (k == 0) {
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < v; ++j) store(out + i * ldc + 16 * j, zero());
      }
      forward_chain(o, v, rows, g, end, g, out, ldc, g == 0 ? Into::kStore : Into::kContinue);
      if (end == k && (!all_direct || t.bias || t.scales)) finish(t, out, ldc, 16 * p, v);
    }
    if (k == 0) break;
  }
}

// ---- gradients

template <int NV>
void grad_tile(const GradBlock& t, bool dot, const void* a, const void* b, int64_t vector_stride, int64_t row, int64_t depth,
               float* c, int64_t ldc, Into into) {
  const int64_t rows = smaller(kTileRows, t.rows - row);
  if constexpr (kHasDot) {
    if (dot) {
      const bf16* pa = static_cast<const bf16*>(a);
      const bf16* pb = static_cast<const bf16*>(b);
      if (t.a_transposed)
        microkernel_dot_rows<NV, ALayout::kColumns>(rows, pa + row * ((depth + 1) / 2 * 2), 2 * kTileRows, pb, vector_stride,
                                                    depth, c, ldc, into);
      else
        microkernel_dot_rows<NV, ALayout::kRows>(rows, pa + row * t.a.stride, t.a.stride, pb, vector_stride, depth, c, ldc, into);
      return;
    }
  }
  const float* fa = static_cast<const float*>(a);
  const float* fb = static_cast<const float*>(b);
  microkernel_rows<NV, ALayout::kColumns>(rows, fa + row * depth, kTileRows, fb, 16, vector_stride, depth, c, ldc, into);
}

void grad(const GradBlock& t) {
  const bool pairs = t.a.dtype == DType::kBF16 && t.b.dtype == DType::kBF16, dot = kHasDot && pairs;
  const int64_t panels = (t.cols + 15) / 16;
  const bool direct = t.c.dtype == DType::kF32;
  const int64_t full_panels = direct ? t.cols / 16 : 0;
  // Columns of C that are not whole fp32 vectors live in scratch until the end.
  const int64_t ldt = 16 * (panels - full_panels);
  float* const tail = ldt ? scratch(Scratch::kC, t.rows * ldt) : nullptr;
  for (int64_t i = 0; i < (ldt ? t.rows : 0); ++i)
    for (int64_t j = 0; j < ldt; ++j)
      tail[i * ldt + j] = t.add && 16 * full_panels + j < t.cols
                              ? static_cast<const float*>(t.c.data)[i * t.c.stride + 16 * full_panels + j]
                              : 0.0f;
  if (t.depth == 0 && !t.add) {
    for (int64_t i = 0; i < t.rows; ++i)
      for (int64_t j = 0; j < full_panels; ++j) store(static_cast<float*>(t.c.data) + i * t.c.stride + 16 * j, zero());
  }
  for (int64_t d = 0; d < t.depth; d += t.chain) {
    const int64_t depth = smaller(t.chain, t.depth - d), even = (depth + 1) / 2 * 2;
    const Into into = d == 0 && !t.add ? Into::kStore : Into::kAdd;
    const void* a = at(t.a, 0, d);
    if (!dot || t.a_transposed) {
      const int64_t whole_tiles = (t.rows + kTileRows - 1) / kTileRows * kTileRows;
      float* packed = scratch(Scratch::kA, whole_tiles * even);
      if (dot)
        pack_transposed_pairs(t.a, d, depth, t.rows, reinterpret_cast<bf16*>(packed));
      else if (t.a_transposed)
        pack_transposed(t.a, d, depth, t.rows, pairs, scratch(Scratch::kTree, whole_tiles), packed);
      else
        pack_tiles(t.a, d, depth, t.rows, kTileRows, pairs, packed);
      a = packed;
    }
    const int64_t panel = dot ? 16 * even : 16 * depth;
    const int64_t panel_bytes = panel * (dot ? 2 : 4);
    float* const strip = scratch(Scratch::kB, kStripPanels * 16 * even);
    for (int64_t s = 0; s < panels; s += kStripPanels) {
      const int64_t in_strip = smaller(kStripPanels, panels - s);
      if (dot)
        pack_strip_pairs(t.b, d, depth, 16 * s, t.cols, in_strip, reinterpret_cast<bf16*>(strip));
      else
        pack_strip(t.b, d, depth, 16 * s, t.cols, in_strip, pairs, strip);
      const bool more = s + in_strip < panels;
      const int64_t element = dtype_bytes(t.b.dtype), tiles = (t.rows + kTileRows - 1) / kTileRows;
      const int64_t next_col = 16 * (s + in_strip);
      Ahead ahead(at(t.b, d, next_col), more ? depth : 0, smaller(16 * kStripPanels, t.cols - next_col) * element,
                  t.b.stride * element, tiles * (in_strip + kTileVectors - 1) / kTileVectors);
      for (int64_t p = s, v = 0; p < s + in_strip; p += v) {
        const bool whole = p < full_panels;
        v = smaller(kTileVectors, (whole ? smaller(full_panels, s + in_strip) : s + in_strip) - p);
        float* c = whole ? static_cast<float*>(t.c.data) + 16 * p : tail + 16 * (p - full_panels);
        const int64_t ldc = whole ? t.c.stride : ldt;
        const void* b = reinterpret_cast<const char*>(strip) + (p - s) * panel_bytes;
        for (int64_t i = 0; i < t.rows; i += kTileRows) {
          ahead.fetch();
          if (v == 1)
            grad_tile<1>(t, dot, a, b, panel, i, depth, c + i * ldc, ldc, into);
          else
            grad_tile<2>(t, dot, a, b, panel, i, depth, c + i * ldc, ldc, into);
        }
      }
    }
  }
  for (int64_t i = 0; i < (ldt ? t.rows : 0); ++i)
    for (int64_t j = 0; j < ldt; j += 16) {
      const int64_t col = 16 * full_panels + j, width = smaller(16, t.cols - col), to = i * t.c.stride + col;
      const f32 v = load(tail + i * ldt + j);
      if (direct) {
        store_first(static_cast<float*>(t.c.data) + to, v, width);
      } else {
        bf16 rounded[16];
        store_bf16(rounded, v);
        std::memcpy(static_cast<bf16*>(t.c.data) + to, rounded, static_cast<size_t>(width) * sizeof(bf16));
      }
    }
}

void bias_grad(ConstMatrix dy, float* dbias) {
  for (int64_t j = 0; j < dy.cols; j += 16) {
    const int64_t width = smaller(16, dy.cols - j);
    f32 total = load_first(dbias + j, width);
    for (int64_t begin = 0; begin < dy.rows; begin += 256) {
      f32 sum = zero();
      for (int64_t i = begin; i < smaller(dy.rows, begin + 256); ++i) {
        const void* source = at(dy, i, j);
        if (width < 16) {
          float padded[16] = {};
          copy_row(source, dy.dtype, width, padded);
          sum = add(sum, load(padded));
        } else {
          sum = add(sum, dy.dtype == DType::kF32 ? load(static_cast<const float*>(source))
                                                 : load_bf16(static_cast<const bf16*>(source)));
        }
      }
      total = add(total, sum);
    }
    store_first(dbias + j, total, width);
  }
}

}  // namespace

const GemmTable kGemmTable{forward, grad, bias_grad, kTileRows};

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE

#include "weft/kernels/simd_end.h"
