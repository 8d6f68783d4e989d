#pragma once
// Routing of mixture-of-experts layers (docs/numerics.md, rule 6). Legend: T tokens, E experts, k slots, H hidden.

#include <cstdint>
#include <span>
#include <vector>

#include "weft/kernels/matrix.h"

namespace weft::kernels {

// Score function of the architecture.
enum class RouterScore { kSoftmax, kSigmoid };

struct RouterParams {
  RouterScore score = RouterScore::kSoftmax;
  int64_t top_k = 1;
  bool normalize = true;          // gates divided by their sum over slots (norm_topk_prob)
  float scale = 1.0f;             // routed_scaling_factor, after normalisation
  const float* bias = nullptr;    // [E], selection only (sigmoid routers)
};

// Selection: ids [T, k] in descending order of the selection value (logits for softmax, score + bias for sigmoid), ties to the lower id.
// NaN logits are the caller's error (checked there).
void router_select(const float* logits, int64_t tokens, int64_t experts, const RouterParams& params, int32_t* ids);
// Gates [T, k] of given ids from live logits: normalised softmax = exp(l - max over the k) / ascending sum over slots; unnormalised
// softmax = exp(l - m) / sum over all E (16 lane sums, lane tree). Used for live and replayed routes alike.
void router_gates(const float* logits, int64_t tokens, int64_t experts, const RouterParams& params, const int32_t* ids, float* gates);
// dlogits [T, E] += from dgates [T, k].
void router_gates_backward(const float* dgates, const float* logits, const float* gates, int64_t tokens, int64_t experts,
                           const RouterParams& params, const int32_t* ids, float* dlogits);

// Stable counting sort of the T*k (token, slot) pairs by expert: row r of the permuted matrix holds pair order[r] = token*k + slot;
// position[token*k + slot] = r; offsets [E+1].
struct Permutation {
  std::vector<int64_t> offsets;
  std::vector<int32_t> order, position;
};
Permutation make_permutation(std::span<const int32_t> ids, int64_t top_k, int64_t experts);

// rows [T*k, H] = x[token of the pair]; x fp32 or bf16, same dtype out.
void permute_rows(ConstMatrix x, const Permutation& p, int64_t top_k, Matrix rows);
// dx [T, H] fp32 = sum over slots ascending of drows at the pair's row.
void permute_rows_backward(ConstMatrix drows, const Permutation& p, int64_t top_k, float* dx);

// y [T, H] fp32: acc = round(g0*out0), then acc = round(acc + round(g*out)) for slots ascending; out rows fp32 or bf16, permuted.
void combine_forward(ConstMatrix out, const Permutation& p, int64_t top_k, const float* gates, float* y);
// dout rows = g * dy (dtype of dout), dgates [T, k] = dot(dy, out): 16 lane sums and the lane tree.
void combine_backward(const float* dy, ConstMatrix out, const Permutation& p, int64_t top_k, const float* gates, Matrix dout, float* dgates);

}  // namespace weft::kernels
