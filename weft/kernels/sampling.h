#pragma once
// Sampling one token from a row of logits (contract: docs/rollout.md). Order: logit bias, min-tokens mask, temperature, top-k, top-p
// (descending, ties to the lower id), min-p; what is removed enters the log-sum-exp as -inf.

#include <cstdint>
#include <span>
#include <vector>

#include "weft/kernels/logprob.h"

namespace weft::kernels {

struct SampleParams {
  float temperature = 1.0f;    // 0 = greedy: arg max over the full row, ties to the lower id; log-prob at temperature 1, full vocabulary
  float top_p = 1.0f;          // 1 = off
  int32_t top_k = 0;           // 0 or -1 = off
  float min_p = 0.0f;          // 0 = off
  const LogitBias* bias = nullptr;
  std::span<const int32_t> banned;  // min-tokens mask: ids that may not be drawn yet (ascending)
  uint64_t seed = 0;           // the request's seed
  uint64_t sample_index = 0;   // which of the n samples
  uint64_t position = 0;       // absolute position of the token being drawn
};

struct Sampled {
  int32_t token = 0;
  float log_prob = 0.0f;       // of the row as sampled from (processed), or raw at T=1 when greedy
  float raw_log_prob = 0.0f;   // log-softmax of the untouched logits at T=1 when asked for, else equal to log_prob
  KeptTokens kept;             // what remained, ascending ids (all = nothing was removed)
};

// logits [V] fp32, used as scratch (overwritten). Gumbel-max: token = arg max over kept of z - log(-log(u)), u = uniform of
// (seed, sample_index, position; counter = token id), ties to the lower id: the same request gives the same token in any company.
Sampled sample(float* logits, int64_t vocab, const SampleParams& params, bool want_raw);

// The n highest (token, processed log-prob), descending, ties to the lower id; for top-logprobs.
std::vector<std::pair<int32_t, float>> top_log_probs(const float* logits, int64_t vocab, int64_t n);

}  // namespace weft::kernels
