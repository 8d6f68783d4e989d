#pragma once
// Log-probabilities over the vocabulary (docs/numerics.md, rule 4) and the fused LM head. Legend: R rows, V vocabulary, H hidden.
//
// log-sum-exp of a row z [V]: eight leaves at vocab_leaf(V, i) = 16*floor(i*ceil(V/16)/8); a leaf is walked in blocks of 512 (exact max,
// then exp(z - max) into 16 lane sums by index from the block's start, lane tree); blocks merge ascending, leaves by the tree
// ((0+1)+(2+3))+((4+5)+(6+7)); merge(a, b): m = max, s = s_a*exp(m_a-m) + s_b*exp(m_b-m) without FMA, a side of all -inf is skipped.
// lse = m + log(s). The sampler and the trainer call the same code, so their log-probs have the same bits.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "weft/kernels/gemm.h"
#include "weft/kernels/matrix.h"

namespace weft::kernels {

constexpr int64_t vocab_leaf(int64_t vocab, int i) { return i == kNumLeaves ? vocab : 16 * (i * ((vocab + 15) / 16) / kNumLeaves); }

// What a row's sampler removed and changed before the log-sum-exp. Empty = the full vocabulary.
struct KeptTokens {
  bool all = true;
  std::vector<int32_t> ids;  // ascending, when !all: every other token enters as -inf
};
struct LogitBias {
  std::vector<int32_t> ids;  // ascending
  std::vector<float> values;  // added to the logit before the temperature
};

// log-sum-exp of z [V].
float log_sum_exp(const float* z, int64_t vocab);

// Fused head. For row r: logits = x[r] w^T (single chain over H), z = (logit + bias) * (1/temperature) (one fp32 multiply),
// log_probs[r] = z[target] - lse, entropy[r] = lse - sum p*z over kept tokens (may be null; 0*-inf counts 0).
struct HeadRow {
  int32_t target = 0;
  float inv_temperature = 1.0f;
  const KeptTokens* kept = nullptr;      // null = all
  const LogitBias* bias = nullptr;       // null = none
};
// The part of the vocabulary that a rank of a vocabulary-parallel head holds: leaves [first, first + count), its weight the rows
// [vocab_leaf(first), vocab_leaf(first + count)); count 1, 2, 4 or 8. The default is all of it.
struct VocabSpan {
  int64_t vocab = 0;
  int first = 0, count = kNumLeaves;
  int64_t begin() const { return std::min(vocab, vocab_leaf(vocab, first)); }
  int64_t end() const { return std::min(vocab, vocab_leaf(vocab, first + count)); }
};
// What a leaf, or a span of leaves, has of a row's log-sum-exp; `weighted` for the entropy.
struct VocabSum {
  float max = -std::numeric_limits<float>::infinity(), sum = 0.0f, weighted = 0.0f;
};
// As head_logprob_forward for the span's tokens: sums [R] of its leaves by the tree, and z of the targets that lie in it (the others'
// target_z stays as it is). join_vocab_sums puts two neighbours together; over ranks by the binary tree the bits are those of one head.
void head_logprob_span(ConstMatrix x, const PackedWeight& w, const VocabSpan& span, std::span<const HeadRow> rows, bool want_entropy,
                       VocabSum* sums, float* target_z);
VocabSum join_vocab_sums(const VocabSum& left, const VocabSum& right);
// log_probs, entropy and lse (each may be null) of a whole row.
void finish_vocab_sum(const VocabSum& whole, float target_z, float* log_prob, float* entropy, float* lse);

// x [R, H] fp32 or bf16; w packed [V, H]. Holds logits of at most 256 rows x 2048 entries at once, never R x V.
// Keeps lse [R] for the backward.
void head_logprob_forward(ConstMatrix x, const PackedWeight& w, std::span<const HeadRow> rows, float* log_probs, float* entropy, float* lse);

// Given dlog_probs [R] (and dentropy [R], may be null): dlogit = inv_T * (dlp * (1[target] - p) + ...). dx [R, H] stored (fp32 or bf16);
// dw [V, H] fp32 added to (may be null when frozen). w raw [V, H]. Logits are recomputed by blocks. dlogit stays fp32. With a span w, w_raw
// and dw are its rows, dx its part of the sum; entropy [R] is what the forward gave, needed where dentropy is.
void head_logprob_backward(ConstMatrix x, const PackedWeight& w, ConstMatrix w_raw, std::span<const HeadRow> rows, const float* lse,
                           const float* dlog_probs, const float* dentropy, Matrix dx, float* dw);
void head_logprob_span_backward(ConstMatrix x, const PackedWeight& w, ConstMatrix w_raw, const VocabSpan& span, std::span<const HeadRow> rows,
                                const float* lse, const float* entropy, const float* dlog_probs, const float* dentropy, Matrix dx, float* dw);

}  // namespace weft::kernels
