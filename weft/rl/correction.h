#pragma once
// Corrections for the gap between the policy that sampled (rollout) and the trainer before the update (old):
// importance weights, rejection, veto. rho = exp(old - rollout) per token. Weights have no gradient and multiply the policy term
// only (never KL or entropy). Rejected tokens leave the mask, so also the denominators: count them afterwards.
// Needs the whole step batch (normalisation spans it). Follows verl: log-ratios, and sums of them, are clamped at +-20.

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "weft/rl/rows.h"

namespace weft {

// Of what the weight is made: the token's rho, the product over the row, or the geometric mean over the row.
enum class ImportanceLevel { kNone, kToken, kSequence, kGeometric };

// ValueError for an unknown name; "" and "null" are kNone.
ImportanceLevel parse_importance_level(const std::string& name);

// A statistic of e = clamp(log rho): k1 = -e, k2 = e^2 / 2, k3 = exp(e) - 1 - e; per token, or sum, mean or max over the row
// (then the row goes as a whole). Kept: k1 in [log lower, log upper], k2 and k3 up to `upper`. The sign of k1 is verl's: bounds
// "0.1_1.2" keep rho in [1/1.2, 1/0.1].
struct RejectionRule {
  enum class Scope { kToken, kSum, kMean, kMax };
  enum class Statistic { kK1, kK2, kK3 };
  Scope scope = Scope::kToken;
  Statistic statistic = Statistic::kK1;
  double lower = 0.5;  // k1 only
  double upper = 2.0;
};

// verl's spelling: options "token_k1,seq_mean_k3", thresholds "0.5_2.0,0.01" (one threshold serves all; for k1 a single C means
// 1/C to C). ValueError names the part that is wrong.
std::vector<RejectionRule> parse_rejection_rules(const std::string& options, const std::string& thresholds);

// A user's own weights, per token of packed rows (values outside the mask are not read), by the name that
// algorithm.rollout_correction.rollout_is gives. They multiply the policy term; rejection and veto come before them.
using CorrectionFn = std::function<std::vector<double>(const PackedRows& rows, std::span<const double> old_log_probs,
                                                       std::span<const double> rollout_log_probs)>;
using CorrectionRegistry = std::map<std::string, CorrectionFn>;

struct CorrectionOptions {
  ImportanceLevel level = ImportanceLevel::kNone;
  double lower = 0.0;
  double upper = 2.0;
  bool mask_outside = false;  // weights outside [lower, upper] become 0; else they are cut to the bounds (truncated)
  bool batch_normalize = false;
  std::vector<RejectionRule> rejections;
  double veto = 0.0;  // a row with any rho below it is rejected; 0 = off
  CorrectionFn own;   // weights in the place of a level's: no bounds; normalised over tokens. ValueError for a wrong count
};

// verl's rollout_is_threshold: "2.0" truncates above, "0.5_2.0" masks outside. ValueError unless 0 <= lower < upper.
void parse_importance_threshold(const std::string& text, CorrectionOptions* options);

struct CorrectionResult {
  std::vector<double> weights;  // per token, 0 outside the incoming mask; all 1 inside for kNone
  std::vector<uint8_t> mask;    // incoming mask without what was rejected
  // Over the incoming mask, before normalisation; 0 for a batch without tokens.
  double weight_mean = 0;
  double weight_max = 0;
  double weight_min = 0;
  double effective_sample_size = 0;  // (sum w)^2 / (n sum w^2), in (0, 1]; 0 when all weights are 0
  double outside_fraction = 0;       // share of tokens whose weight was cut or zeroed
  double norm_factor = 1;            // what weights were divided by: mean over tokens, or over rows for the row levels
  double rejected_tokens = 0;        // share of tokens
  double rejected_rows = 0;          // share of rows (with a token) that lost one
};

// Values outside the mask are never read.
CorrectionResult rollout_correction(const PackedRows& rows, std::span<const double> old_log_probs,
                                    std::span<const double> rollout_log_probs, const CorrectionOptions& options);

// Off-policy sequence mask: per token 0 in rows with a negative mean advantage whose mean (reference - current) log-prob is above
// `threshold`, 1 elsewhere. A factor of the weights: the rows stay in the denominators. reference: rollout log-probs, else old
// ones.
std::vector<double> off_policy_sequence_mask(const PackedRows& rows, std::span<const double> reference_log_probs,
                                             std::span<const double> log_probs, std::span<const double> advantages,
                                             double threshold);

}  // namespace weft
