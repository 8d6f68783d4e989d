#pragma once
// Matrix products of the numerics contract (docs/numerics.md, rules 2 and 3). Legend: M rows (tokens), K inputs, N outputs, E
// experts.
//
// Order. Forward: each output is one ascending fp32 FMA chain over K, from +0. Where both operands are bf16, each pair of K goes
// odd element first, then even (what vdpbf16ps computes); a last single element is one FMA. An fp32 operand makes the chain plain
// ascending (the bf16 operand widened). kLeaves: eight chains over leaf_begin(K, 0..8), joined by ((0+1)+(2+3))+((4+5)+(6+7)).
// int8 weights count as an fp32 operand; each chain (each leaf, before the tree) is multiplied by its output's scale, once.
// The bits of an output row depend on that row and the weight only: not on M, threads, target or blocking.
// Backward: input gradients are chains of at most 512 of N, each from +0, added ascending; weight gradients are chains of 256
// tokens (of the rows of that call, or of that expert), each from +0, added ascending into the fp32 buffer. Same pair rule for
// bf16 x bf16, pairs counted from the start of the chain. An input gradient that is stored starts as its first chain; one that
// accumulates starts as what dx held. No rows: stored outputs of a zero-length contraction are +0, gradients that are added to
// stay untouched.
//
// Beside each: gemm_reference.h, scalar loops (std::fma) of the same order, equal bit for bit.
// All functions run on the calling thread's parallel_for threads. Sizes of zero are fine everywhere.

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "weft/base/arena.h"
#include "weft/kernels/matrix.h"
#include "weft/kernels/target.h"

namespace weft::kernels {

enum class Chain { kSingle, kLeaves };

inline constexpr int kNumLeaves = 8;
// b(i) = 2*floor(i*ceil(K/2)/8), b(8) = K: where leaf i begins (design: every tp size in {1,2,4,8} cuts here).
constexpr int64_t leaf_begin(int64_t k, int i) { return i == kNumLeaves ? k : 2 * (i * ((k + 1) / 2) / kNumLeaves); }
// The leaves of a contraction of length k that one rank holds: `count` (1, 2, 4 or 8) of them from `first`, a multiple of count.
struct LeafSpan {
  int64_t k = 0;
  int first = 0, count = kNumLeaves;
  constexpr int64_t begin(int leaf) const { return leaf_begin(k, first + leaf) - leaf_begin(k, first); }
  constexpr int64_t columns() const { return begin(count); }
};

// Weights [E, N, K] (E = 1 for a dense layer) copied into panels of sixteen outputs: [K][16] fp32 and int8, [ceil(K / 2)][16][2]
// bf16. The layout is the same for every target. Owns its memory. Rebuilt in place by pack() when the weight changes;
// packed_for() tells whether the target still fits.
class PackedWeight {
 public:
  PackedWeight();
  ~PackedWeight();
  PackedWeight(PackedWeight&&) noexcept;
  PackedWeight& operator=(PackedWeight&&) noexcept;

  // Where panels lie from here on, always of one size; without: memory that comes and goes. Its discarding leaves the panels
  // empty.
  void set_arena(std::shared_ptr<Arena> arena);
  // w: contiguous [experts, n, k], fp32 or bf16. Reuses memory when the size is the same.
  void pack(const void* w, DType dtype, int64_t experts, int64_t n, int64_t k);
  // int8 weights with the scales of their rows (quantize.h), [experts, n]. Forward products only.
  void pack(const int8_t* w, const float* scales, int64_t experts, int64_t n, int64_t k);
  void clear();
  bool empty() const;
  Target packed_for() const;
  DType dtype() const;
  int64_t experts() const;
  int64_t n() const;
  int64_t k() const;
  int64_t bytes() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  void pack_rows(const void* w, DType dtype, int64_t experts, int64_t n, int64_t k);

  std::unique_ptr<Impl> impl_;
};

// What pack() takes.
int64_t packed_weight_bytes(DType dtype, int64_t experts, int64_t n, int64_t k);

// y [M, N] = x [M, K] w^T, then + bias [N] (fp32, may be null) after the chain or tree. y fp32 or bf16. w has one expert.
// gemm_columns: y [M, n] is outputs [first, first + n) of it, first a multiple of 16; the same bits.
void gemm(ConstMatrix x, const PackedWeight& w, const float* bias, Matrix y, Chain chain = Chain::kSingle);
// gemm_leaves: x and w are the columns [leaf_begin(k, first), leaf_begin(k, first + count)) of the whole, y [M, N] fp32 is their
// part of the tree. What the ranks hold, joined by a binary tree, has the bits of kLeaves.
void gemm_leaves(ConstMatrix x, const PackedWeight& w, LeafSpan span, Matrix y);
void gemm_columns(ConstMatrix x, const PackedWeight& w, int64_t first, Matrix y);

// dx [M, K] = dy [M, N] w, w contiguous [N, K] fp32 or bf16. dx fp32 or bf16; accumulate adds to an fp32 dx instead of storing.
void gemm_input_grad(ConstMatrix dy, ConstMatrix w, Matrix dx, bool accumulate = false);

// dw [N, K] += dy [M, N]^T x [M, K]; dw contiguous fp32.
void gemm_weight_grad(ConstMatrix dy, ConstMatrix x, float* dw);

// dbias [N] += column sums of dy [M, N], ascending rows in chains of 256 (plain adds).
void gemm_bias_grad(ConstMatrix dy, float* dbias);

// Grouped: rows [offsets[e], offsets[e+1]) of x belong to expert e; offsets has E+1 entries, offsets[E] = M. Experts may have no
// rows.
void grouped_gemm(ConstMatrix x, const PackedWeight& w, std::span<const int64_t> offsets, Matrix y);
// w contiguous [E, N, K].
void grouped_gemm_input_grad(ConstMatrix dy, const void* w, DType w_dtype, std::span<const int64_t> offsets, Matrix dx);
// dw contiguous [E, N, K] fp32, added to.
void grouped_gemm_weight_grad(ConstMatrix dy, ConstMatrix x, std::span<const int64_t> offsets, float* dw);

}  // namespace weft::kernels
