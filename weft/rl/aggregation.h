#pragma once
// How per-token losses become one number. Every mode is a weight per token, so that the loss of a step is
// sum over all tokens of weight * loss, whatever the split into micro-batches or ranks:
//   token-mean               1 / tokens
//   seq-mean-token-mean      1 / (row_tokens * rows)
//   seq-mean-token-sum       1 / rows
//   seq-mean-token-sum-norm  1 / (rows * max_length)      (Dr.GRPO: a constant length)
//   token-sum                1
// verl's names and meaning: rows counts rows with at least one token (TRL counts all rows). Deterministic: sums in token order.

#include <span>
#include <string>
#include <vector>

#include "weft/rl/rows.h"

namespace weft {

enum class AggregationMode { kTokenMean, kSeqMeanTokenMean, kSeqMeanTokenSum, kSeqMeanTokenSumNorm, kTokenSum };

// ValueError that lists the names for an unknown one.
AggregationMode parse_aggregation_mode(const std::string& name);
std::string aggregation_mode_name(AggregationMode mode);

// Of the whole update batch (all micro-batches, all ranks), not of the rows at hand.
struct Denominators {
  double tokens = 0;      // tokens that count
  double rows = 0;        // rows with at least one token that counts
  double max_length = 0;  // seq-mean-token-sum-norm only: a constant, e.g. the largest response length [tokens]
};

struct Aggregation {
  AggregationMode mode = AggregationMode::kTokenMean;
  Denominators denominators;
};

Denominators count_denominators(const PackedRows& rows, double max_length = 0);

// Weight of each token of a row with `tokens_in_row` tokens that count (0 for none).
double token_weight(const Aggregation& aggregation, int64_t tokens_in_row);

// sum of weight * values; grad (per token) is the weight: d value / d values. Values outside the mask are never read.
struct AggregateResult {
  double value = 0;
  std::vector<double> grad;
};
AggregateResult aggregate(const PackedRows& rows, std::span<const double> values, const Aggregation& aggregation);

}  // namespace weft
