#pragma once
// Measures of the gap between two sets of log-probs of the same sampled tokens. One struct, two uses that must not be mixed up:
// train-vs-rollout (from = rollout engine, to = trainer before the update) and train-vs-old, the staleness (from = old, to =
// current). Holds sums, so that micro-batches and ranks merge; the named figures are 0 for a batch without tokens, never NaN.

#include <span>

#include "weft/rl/rows.h"

namespace weft {

// rho = exp(to - from).
struct LogProbGap {
  double tokens = 0;
  double rows = 0;  // with a token that counts
  double sum_difference = 0;
  double sum_absolute = 0;
  double max_absolute = 0;
  double sum_k3 = 0;
  double ratio_above_2 = 0;
  double sum_ratio = 0;          // log-ratio clamped at +-20
  double sum_ratio_squared = 0;  // likewise
  double sum_row_ratio_squared = 0;
  double sum_from_perplexity = 0;
  double sum_to_perplexity = 0;

  void merge(const LogProbGap& other);

  double kl() const;                     // mean (from - to): k1 of KL(from || to)
  double k3() const;                     // mean (rho - log rho - 1), not clamped
  double mean_absolute() const;          // mean |to - from|
  double ratio_above_2_share() const;    // share of tokens with max(rho, 1 / rho) > 2
  double chi2_token() const;             // mean rho^2 - 1
  double chi2_sequence() const;          // mean over rows of (product of rho)^2 - 1
  double effective_sample_size() const;  // (sum rho)^2 / (tokens * sum rho^2), in (0, 1]
  double from_perplexity() const;        // mean over rows of exp(-mean log-prob)
  double to_perplexity() const;
};

// Values outside the mask are never read.
LogProbGap log_prob_gap(const PackedRows& rows, std::span<const double> from, std::span<const double> to);

}  // namespace weft
