#pragma once
// Policy losses: value and d loss / d log-prob of every token, in closed form.
// A loss is a function of one row; a user's own one is a PolicyLoss put into the registry under a new name:
//   registry["mine"] = {[](const PolicyRow& row, const PolicyParams& p, PolicyRowResult& out) {
//     for (size_t t = 0; t < row.size(); ++t) {
//       out.loss[t] = -row.advantages[t] * row.log_probs[t];
//       out.grad[t] = row.weights[t] * -row.advantages[t];
//     }
//   }};
// Who is followed: verl (its clamps of the log-ratio included), see each function. Deterministic: tokens in order, no libm.

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "weft/rl/aggregation.h"
#include "weft/rl/rows.h"

namespace weft {

// verl's names. Units: ratios, except for gmpo, where the clip bounds are differences of log-probs (as in verl and TRL).
struct PolicyParams {
  double clip_ratio_low = 0.2;   // ratio is kept above 1 - low
  double clip_ratio_high = 0.2;  // and below 1 + high
  double clip_ratio_c = 3.0;     // dual clip of vanilla: bound of the loss for A < 0; 0 = off, else > 1
  double tau_pos = 1.0;          // sapo
  double tau_neg = 1.05;         // sapo
};

// One row, already without its masked tokens: every entry counts. Rows without such a token are never passed.
struct PolicyRow {
  std::span<const double> log_probs;          // current policy
  std::span<const double> old_log_probs;      // trainer before the update
  std::span<const double> rollout_log_probs;  // rollout engine; empty when the batch has none
  std::span<const double> advantages;
  std::span<const double> correction_weights;  // 1 without a correction
  std::span<const double> weights;             // aggregation weight times correction weight: the row adds sum of weights * loss

  size_t size() const { return log_probs.size(); }
};

struct PolicyRowResult {
  std::span<double> loss;    // per token, without weights
  std::span<double> grad;    // d (sum over the row of weights * loss) / d log_probs: with weights
  double clipped = 0;        // tokens whose ratio was clipped (verl pg_clipfrac)
  double clipped_lower = 0;  // tokens at the dual clip (verl pg_clipfrac_lower)
};

using PolicyLossFn = std::function<void(const PolicyRow&, const PolicyParams&, PolicyRowResult&)>;

struct PolicyLoss {
  PolicyLossFn fn;
  // The loss is one number a row, defined as a mean over rows: other modes than seq-mean-token-mean are a ValueError.
  bool needs_seq_mean = false;
};

using PolicyLossRegistry = std::map<std::string, PolicyLoss>;

// vanilla, gspo (= gspo_token), gspo_sequence, cispo, sapo, gmpo, gpg (= reinforce).
PolicyLossRegistry builtin_policy_losses();

// ValueError that lists the known names.
const PolicyLoss& find_policy_loss(const PolicyLossRegistry& registry, const std::string& name);

// ValueError for bounds without meaning and for a loss with an aggregation it does not define. Call once per run.
void check_policy_params(const std::string& name, const PolicyLoss& loss, const PolicyParams& params, AggregationMode mode);

// Per-token spans; rollout_log_probs and correction_weights may be empty. Values outside the mask are never read.
struct PolicyBatch {
  PackedRows rows;
  std::span<const double> log_probs;
  std::span<const double> old_log_probs;
  std::span<const double> rollout_log_probs;
  std::span<const double> advantages;
  std::span<const double> correction_weights;  // no gradient; multiply the policy term only
};

struct PolicyLossResult {
  double loss = 0;           // this batch's part of the loss of the update
  std::vector<double> grad;  // per token; 0 outside the mask
  // Sums over tokens that count; divide by `tokens` after adding up the micro-batches.
  double tokens = 0;
  double clipped = 0;
  double clipped_lower = 0;
  double old_kl = 0;  // sum of old - current log-prob (verl ppo_kl, without its clamp): staleness, not the rollout gap
};

PolicyLossResult policy_loss(const PolicyLoss& loss, const PolicyParams& params, const PolicyBatch& batch,
                             const Aggregation& aggregation);

}  // namespace weft
