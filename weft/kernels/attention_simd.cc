#include "weft/kernels/attention_simd.h"

#include <bit>
#include <limits>

#include "weft/kernels/attention.h"

#include "weft/kernels/microkernel.h"
#include "weft/kernels/simd.h"
#include "weft/kernels/vec_math.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {
namespace {

WEFT_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
WEFT_INLINE int64_t lanes_of(int64_t n) { return n < 0 ? 0 : smaller(n, 16); }

// Few rows take wide tiles: a chain's latency hides behind other columns instead of other rows. Only the shapes in use are
// instantiated, since each costs seconds to compile.
#define WEFT_WIDE_CASE(rows_here, wide)                                              \
  case rows_here:                                                                    \
    for (; vectors >= (wide); vectors -= (wide), b += 16 * (wide), c += 16 * (wide)) \
      microkernel<rows_here, wide>(a, lda, b, ldb, 16, k, c, ldc, into);             \
    break;
void product(int64_t rows, int64_t vectors, const float* a, int64_t lda, const float* b, int64_t ldb, int64_t k, float* c,
             int64_t ldc, Into into) {
  switch (rows) {
#if WEFT_SIMD_TARGET == 1
    WEFT_WIDE_CASE(1, 4)
    WEFT_WIDE_CASE(2, 2)
    WEFT_WIDE_CASE(3, 2)
#elif WEFT_SIMD_TARGET > 1
    WEFT_WIDE_CASE(1, 4)
    WEFT_WIDE_CASE(2, 4)
    WEFT_WIDE_CASE(3, 4)
    WEFT_WIDE_CASE(4, 4)
    WEFT_WIDE_CASE(5, 4)
    WEFT_WIDE_CASE(6, 4)
#endif
    default: break;
  }
  if (vectors > 0) microkernel_block(rows, vectors, a, lda, b, ldb, 16, k, c, ldc, into);
}
#undef WEFT_WIDE_CASE

// C [64 keys, 16 * vectors] += A^T B over `rows`, A [rows, 64].
void transposed_product(int64_t rows, int64_t vectors, const float* a, const float* b, int64_t ldb, float* c, int64_t ldc) {
  for (int64_t j = 0; j < vectors; ++j)
    for (int64_t i = 0; i < kKeyBlock; i += kTileRows)
      microkernel_rows<1, ALayout::kColumns>(smaller(kTileRows, kKeyBlock - i), a + i, kKeyBlock, b + 16 * j, ldb, 16, rows,
                                             c + i * ldc + 16 * j, ldc, Into::kAdd);
}

void widen(const void* row, bool is_bf16, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i += 16) store_at(to, false, i, n, load_at(row, is_bf16, i, n));
}

// Keys and values of one softmax block as the products read them: in place where the layout allows, else copied and widened.
struct KeyBlock {
  const AttentionTile& t;
  int64_t first, keys;  // positions [first, first + keys) exist
  bool direct;
  float *packed_k, *packed_v;

  const char* at(const char* part, int64_t key) const {
    return part + static_cast<int64_t>(t.blocks[(first + key) / t.block_size]) * t.block_bytes;
  }

  void pack() {
    const int64_t d = t.head_dim, bs = t.block_size, dp = padded16(d), bytes = t.bf16_io ? 2 : 4;
    for (int64_t key = 0; key < keys; key += bs) {
      const int64_t count = smaller(bs, keys - key);
      const char* k = at(t.keys, key);
      for (int64_t i = 0; i < d; ++i) widen(k + i * bs * bytes, t.bf16_io, count, packed_k + i * kKeyBlock + key);
      const char* v = at(t.values, key);
      for (int64_t j = 0; j < count; ++j) widen(v + j * d * bytes, t.bf16_io, d, packed_v + (key + j) * dp);
    }
  }

  // s [rows, 64] = q k^T; columns past `keys` are of no meaning.
  void scores(int64_t rows, const float* q, float* s) const {
    const int64_t d = t.head_dim;
    if (!direct) return product(rows, (keys + 15) / 16, q, padded16(d), packed_k, kKeyBlock, d, s, kKeyBlock, Into::kStore);
    for (int64_t key = 0; key < keys; key += t.block_size)
      product(rows, t.block_size / 16, q, padded16(d), reinterpret_cast<const float*>(at(t.keys, key)), t.block_size, d, s + key,
              kKeyBlock, Into::kStore);
  }

  // o += p v over keys [from, to), the chain continued.
  void add_values(int64_t rows, const float* p, int64_t from, int64_t to, float* o) const {
    const int64_t dp = padded16(t.head_dim);
    if (!direct) return product(rows, dp / 16, p + from, kKeyBlock, packed_v + from * dp, dp, to - from, o, dp, Into::kContinue);
    while (from < to) {
      const int64_t inside = from % t.block_size, count = smaller(to - from, t.block_size - inside);
      const float* v = reinterpret_cast<const float*>(at(t.values, from)) + inside * dp;
      product(rows, dp / 16, p + from, kKeyBlock, v, dp, count, o, dp, Into::kContinue);
      from += count;
    }
  }
};

WEFT_INLINE float exp1(float x) {
  float lanes[16];
  store(lanes, exp(set1(x)));
  return lanes[0];
}

WEFT_INLINE void multiply_row(float* o, float factor, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) store(o + i, mul(load(o + i), set1(factor)));
}

// The online softmax of one row and block: s becomes p (0 past n), o and l are scaled to the new maximum.
void softmax_row(float* s, int64_t n, float scale, float& m, float& l, float* o, int64_t dp) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  f32 x[4], top = set1(-kInf), sum = zero();
  for (int64_t i = 0; i < 4; ++i) {
    x[i] = select(first(lanes_of(n - 16 * i)), mul(load(s + 16 * i), set1(scale)), set1(-kInf));
    top = max(x[i], top);
  }
  const float block_max = max_lanes(top), new_max = block_max > m ? block_max : m;
  for (int64_t i = 0; i < 4; ++i) {
    const f32 p = exp(sub(x[i], set1(new_max)));
    sum = add(sum, p);
    store(s + 16 * i, p);
  }
  if (new_max != m) {  // else the factor is exactly 1
    const float alpha = exp1(m - new_max);
    l = l * alpha;
    multiply_row(o, alpha, dp);
    m = new_max;
  }
  l = l + sum_lanes(sum);
}

void forward(const AttentionTile& t) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const int64_t rows = t.rows, d = t.head_dim, dp = padded16(d), last = t.position[rows - 1];
  float* q = t.scratch;
  float* o = q + kQueryTile * dp;
  float* total = o + kQueryTile * dp;
  float* s = total + kQueryTile * dp;
  float* packed_k = s + kQueryTile * kKeyBlock;
  float* packed_v = packed_k + kKeyBlock * d;
  float m[kQueryTile], l[kQueryTile], total_m[kQueryTile], total_l[kQueryTile];
  for (int64_t i = 0; i < rows; ++i) widen(t.q[i], t.bf16_io, d, q + i * dp);
  const bool direct = !t.bf16_io && t.block_size >= 16 && d % 16 == 0;
  if (!direct)  // columns past head_dim are multiplied too, into columns of o that nobody reads
    for (int64_t i = 0; i < kKeyBlock * dp; ++i) packed_v[i] = 0.0f;
  for (int64_t segment = 0; segment <= last; segment += kKeySegment) {
    int64_t begin = 0;  // rows before it lie wholly before the segment: positions ascend
    while (t.position[begin] < segment) ++begin;
    for (int64_t i = begin; i < rows; ++i) {
      m[i] = -kInf;
      l[i] = 0.0f;
      for (int64_t j = 0; j < dp; j += 16) store(o + i * dp + j, zero());
    }
    int64_t top = begin;
    for (int64_t key = segment; key <= smaller(last, segment + kKeySegment - 1); key += kKeyBlock) {
      while (t.position[top] < key) ++top;
      KeyBlock block{t, key, smaller(kKeyBlock, last - key + 1), direct, packed_k, packed_v};
      if (!direct) block.pack();
      block.scores(rows - top, q + top * dp, s + top * kKeyBlock);
      int64_t limit[kQueryTile];
      for (int64_t i = top; i < rows; ++i) {
        limit[i] = smaller(kKeyBlock, t.position[i] - key + 1);
        softmax_row(s + i * kKeyBlock, limit[i], t.scale, m[i], l[i], o + i * dp, dp);
      }
      if (limit[top] == kKeyBlock) {
        block.add_values(rows - top, s + top * kKeyBlock, 0, kKeyBlock, o + top * dp);
        continue;
      }
      // On the diagonal each row stops at its own last key: the rows of a group leave the common chain one by one.
      for (int64_t group = top; group < rows; group += kTileRows) {
        const int64_t end = smaller(rows, group + kTileRows);
        for (int64_t row = group, from = 0; row < end; ++row) {
          if (limit[row] == from) continue;
          block.add_values(end - row, s + row * kKeyBlock, from, limit[row], o + row * dp);
          from = limit[row];
        }
      }
    }
    for (int64_t i = begin; i < rows; ++i) {
      float* to = total + i * dp;
      const float* from = o + i * dp;
      if (segment == 0) {
        total_m[i] = m[i];
        total_l[i] = l[i];
        for (int64_t j = 0; j < dp; j += 16) store(to + j, load(from + j));
        continue;
      }
      const float top_m = total_m[i] > m[i] ? total_m[i] : m[i], a = exp1(total_m[i] - top_m), b = exp1(m[i] - top_m);
      total_l[i] = total_l[i] * a + l[i] * b;
      for (int64_t j = 0; j < dp; j += 16) store(to + j, add(mul(load(to + j), set1(a)), mul(load(from + j), set1(b))));
      total_m[i] = top_m;
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < d; j += 16) store_at(t.o[i], t.bf16_io, j, d, div(load(total + i * dp + j), set1(total_l[i])));
    if (t.lse[i]) {
      float lanes[16];
      store(lanes, log(set1(total_l[i])));
      *t.lse[i] = total_m[i] + lanes[0];
    }
  }
}

WEFT_INLINE const void* element(const void* base, bool is_bf16, int64_t i) {
  return static_cast<const char*>(base) + i * (is_bf16 ? 2 : 4);
}
WEFT_INLINE void* element(void* base, bool is_bf16, int64_t i) { return static_cast<char*>(base) + i * (is_bf16 ? 2 : 4); }

// [length, d] as transposed blocks [keys / 64][d][64], zero past the length.
void transpose_blocks(const void* x, bool is_bf16, int64_t stride, int64_t length, int64_t d, float* to) {
  for (int64_t first = 0; first < length; first += kKeyBlock, to += d * kKeyBlock)
    for (int64_t key = 0; key < kKeyBlock; ++key)
      for (int64_t i = 0; i < d; ++i) {
        const int64_t at = (first + key) * stride + i;
        to[i * kKeyBlock + key] = first + key >= length ? 0.0f
                                  : is_bf16             ? bf16_to_float(static_cast<const bf16*>(x)[at])
                                                        : static_cast<const float*>(x)[at];
      }
}

void fill_zero(float* p, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = 0.0f;
}

// The sequence's keys and values as the products read them, sums of their gradients, and one tile of query rows.
struct BackwardScratch {
  float *kt, *vt, *k, *dk, *dv, *q, *d_o, *dq, *p, *dp_rows;

  BackwardScratch(const AttentionBackward& t) {
    const int64_t d = t.head_dim, dp = padded16(d), keys = (t.seen + 63) / 64 * 64;
    kt = t.scratch;
    vt = kt + keys * d;
    k = vt + keys * d;
    dk = k + keys * dp;
    dv = dk + keys * dp;
    q = dv + keys * dp;
    d_o = q + kQueryTile * dp;
    dq = d_o + kQueryTile * dp;
    p = dq + kQueryTile * dp;
    dp_rows = p + kQueryTile * kKeyBlock;
    transpose_blocks(t.k, t.bf16_in, t.k_stride, t.seen, d, kt);
    transpose_blocks(t.v, t.bf16_in, t.v_stride, t.seen, d, vt);
    fill_zero(k, 3 * keys * dp + 3 * kQueryTile * dp);
    for (int64_t i = 0; i < t.seen; ++i) widen(element(t.k, t.bf16_in, i * t.k_stride), t.bf16_in, d, k + i * dp);
  }
};

// Query rows [row0, row0 + count) at positions first_position, ..., heads [head0, head0 + in_tile) of the group.
void backward_tile(const AttentionBackward& t, const BackwardScratch& w, int64_t row0, int64_t first_position, int64_t count,
                   int64_t head0, int64_t in_tile) {
  const int64_t d = t.head_dim, dp = padded16(d), rows = count * in_tile, last = first_position + count - 1;
  float lse[kQueryTile], delta[kQueryTile];
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = row0 + i / in_tile, head = head0 + i % in_tile;
    widen(element(t.q, t.bf16_in, row * t.q_stride + head * d), t.bf16_in, d, w.q + i * dp);
    widen(element(t.d_o, t.bf16_d_o, row * t.d_o_stride + head * d), t.bf16_d_o, d, w.d_o + i * dp);
    lse[i] = t.lse[row * t.lse_stride + head];
    const void* o = element(t.o, t.bf16_in, row * t.o_stride + head * d);
    f32 lanes = zero();
    for (int64_t j = 0; j < d; j += 16) lanes = fma(load(w.d_o + i * dp + j), load_at(o, t.bf16_in, j, d), lanes);
    delta[i] = sum_lanes(lanes);
  }
  fill_zero(w.dq, rows * dp);
  int64_t top = 0;
  for (int64_t key = 0; key <= last; key += kKeyBlock) {
    while (first_position + top / in_tile < key) ++top;
    const int64_t n = rows - top;
    float* s = w.p + top * kKeyBlock;
    float* ds = w.dp_rows + top * kKeyBlock;
    product(n, 4, w.q + top * dp, dp, w.kt + key * d, kKeyBlock, d, s, kKeyBlock, Into::kStore);
    product(n, 4, w.d_o + top * dp, dp, w.vt + key * d, kKeyBlock, d, ds, kKeyBlock, Into::kStore);
    for (int64_t i = top; i < rows; ++i) {
      const int64_t limit = smaller(kKeyBlock, first_position + i / in_tile - key + 1);
      for (int64_t j = 0; j < kKeyBlock; j += 16) {
        float* pi = w.p + i * kKeyBlock + j;
        float* di = w.dp_rows + i * kKeyBlock + j;
        const m16 seen = first(lanes_of(limit - j));
        const f32 value = select(seen, exp(sub(mul(load(pi), set1(t.scale)), set1(lse[i]))), zero());
        store(pi, value);
        store(di, select(seen, mul(mul(value, sub(load(di), set1(delta[i]))), set1(t.scale)), zero()));
      }
    }
    transposed_product(n, dp / 16, s, w.d_o + top * dp, dp, w.dv + key * dp, dp);
    transposed_product(n, dp / 16, ds, w.q + top * dp, dp, w.dk + key * dp, dp);
    microkernel_block(n, dp / 16, ds, kKeyBlock, w.k + key * dp, dp, 16, kKeyBlock, w.dq + top * dp, dp, Into::kAdd);
  }
  for (int64_t i = 0; i < rows; ++i) {
    void* to = element(t.dq, t.bf16_out[0], (row0 + i / in_tile) * t.dq_stride + (head0 + i % in_tile) * d);
    for (int64_t j = 0; j < d; j += 16) store_at(to, t.bf16_out[0], j, d, load(w.dq + i * dp + j));
  }
}

void backward(const AttentionBackward& t) {
  const int64_t d = t.head_dim, dp = padded16(d);
  const BackwardScratch w(t);
  const int64_t positions = t.group < kQueryTile ? kQueryTile / t.group : 1;
  const int64_t heads = smaller(t.group, kQueryTile);
  for (int64_t i = 0; i < t.num_runs; ++i) {
    const QueryRun& run = t.runs[i];
    for (int64_t row = run.begin; row < run.end; row += positions)
      for (int64_t head0 = 0; head0 < t.group; head0 += heads)
        backward_tile(t, w, row, run.first_position + row - run.begin, smaller(positions, run.end - row), head0,
                      smaller(heads, t.group - head0));
  }
  for (int64_t i = 0; i < t.length; ++i)
    for (int64_t j = 0; j < d; j += 16) {
      store_at(element(t.dk, t.bf16_out[1], i * t.dk_stride), t.bf16_out[1], j, d, i < t.seen ? load(w.dk + i * dp + j) : zero());
      store_at(element(t.dv, t.bf16_out[2], i * t.dv_stride), t.bf16_out[2], j, d, i < t.seen ? load(w.dv + i * dp + j) : zero());
    }
}

}  // namespace

extern const AttentionTable kAttention;
const AttentionTable kAttention = {forward, backward};

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE

#include "weft/kernels/simd_end.h"
