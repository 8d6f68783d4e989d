#pragma once
// Log-probabilities over the vocabulary (docs/numerics.md, rule 4) and the fused LM head. Legend: R rows, V vocabulary, H hidden.
//
// log-sum-exp of a row z [V]: eight leaves at vocab_leaf(V, i) = 16*floor(i*ceil(V/16)/8); a leaf is walked in blocks of 512 (exact max,
// then exp(z - max) into 16 lane sums by index from the block's start, lane tree); blocks merge ascending, leaves by the tree
// ((0+1)+(2+3))+((4+5)+(6+7)); merge(a, b): m = max, s = s_a*exp(m_a-m) + s_b*exp(m_b-m) without FMA, a side of all -inf is skipped.
// lse = m + log(s). The sampler and the trainer call the same code, so their log-probs have the same bits.

#include <cstdint>
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
// x [R, H] fp32 or bf16; w packed [V, H]. Holds logits of at most 256 rows x 2048 entries at once, never R x V.
// Keeps lse [R] for the backward.
void head_logprob_forward(ConstMatrix x, const PackedWeight& w, std::span<const HeadRow> rows, float* log_probs, float* entropy, float* lse);

// Given dlog_probs [R] (and dentropy [R], may be null): dlogit = inv_T * (dlp * (1[target] - p) + ...). dx [R, H] stored (fp32 or bf16);
// dw [V, H] fp32 added to (may be null when frozen). w raw [V, H]. Logits are recomputed by blocks. dlogit stays fp32.
void head_logprob_backward(ConstMatrix x, const PackedWeight& w, ConstMatrix w_raw, std::span<const HeadRow> rows, const float* lse,
                           const float* dlog_probs, const float* dentropy, Matrix dx, float* dw);

}  // namespace weft::kernels
