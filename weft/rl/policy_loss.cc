#include "weft/rl/policy_loss.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/base/math.h"

namespace weft {
namespace {

// verl's upper clamp of gspo's log-ratio.
constexpr double kSequenceLogRatioLimit = 10.0;

struct Ratio {
  double value;
  double grad;  // d value / d log-prob
};

Ratio clamped_ratio(double log_prob, double old_log_prob) {
  const double d = log_prob - old_log_prob;
  const double r = det_exp(std::clamp(d, -kLogRatioLimit, kLogRatioLimit));
  return {r, d < -kLogRatioLimit || d > kLogRatioLimit ? 0.0 : r};
}

struct Surrogate {
  double loss;
  double slope;  // d loss / d ratio
  bool clipped;
};

// max(-A r, -A clip(r, 1 - low, 1 + high)): clipped only where that lowers the objective.
Surrogate clipped_surrogate(double ratio, double advantage, const PolicyParams& p) {
  const double plain = -advantage * ratio;
  const double bounded = -advantage * std::clamp(ratio, 1.0 - p.clip_ratio_low, 1.0 + p.clip_ratio_high);
  if (bounded > plain) return {bounded, 0.0, true};
  return {plain, -advantage, false};
}

void vanilla(const PolicyRow& row, const PolicyParams& p, PolicyRowResult& out) {
  for (size_t t = 0; t < row.size(); ++t) {
    const Ratio r = clamped_ratio(row.log_probs[t], row.old_log_probs[t]);
    const double a = row.advantages[t];
    Surrogate s = clipped_surrogate(r.value, a, p);
    out.clipped += s.clipped;
    if (p.clip_ratio_c != 0.0 && a < 0.0 && s.loss > -a * p.clip_ratio_c) {
      s = {-a * p.clip_ratio_c, 0.0, true};
      out.clipped_lower += 1;
    }
    out.loss[t] = s.loss;
    out.grad[t] = row.weights[t] * s.slope * r.grad;
  }
}

double mean_log_ratio(const PolicyRow& row) {
  double sum = 0;
  for (size_t t = 0; t < row.size(); ++t) sum += row.log_probs[t] - row.old_log_probs[t];
  return sum / static_cast<double>(row.size());
}

// verl's gspo (GSPO-token of the paper): every token carries the value of the sequence's ratio and its own gradient.
void gspo(const PolicyRow& row, const PolicyParams& p, PolicyRowResult& out) {
  const double mean = mean_log_ratio(row);
  const double ratio = det_exp(std::min(mean, kSequenceLogRatioLimit));
  const double slope = mean > kSequenceLogRatioLimit ? 0.0 : ratio;
  for (size_t t = 0; t < row.size(); ++t) {
    const Surrogate s = clipped_surrogate(ratio, row.advantages[t], p);
    out.clipped += s.clipped;
    out.loss[t] = s.loss;
    out.grad[t] = row.weights[t] * s.slope * slope;
  }
}

// GSPO as TRL and ms-swift differentiate it: through the mean. Equal to gspo while advantages and weights are constant in a row.
void gspo_sequence(const PolicyRow& row, const PolicyParams& p, PolicyRowResult& out) {
  const double mean = mean_log_ratio(row);
  const double ratio = det_exp(std::min(mean, kSequenceLogRatioLimit));
  const double slope = mean > kSequenceLogRatioLimit ? 0.0 : ratio;
  double sum = 0;
  for (size_t t = 0; t < row.size(); ++t) {
    const Surrogate s = clipped_surrogate(ratio, row.advantages[t], p);
    out.clipped += s.clipped;
    out.loss[t] = s.loss;
    sum += row.weights[t] * s.slope;
  }
  for (double& g : out.grad) g = sum * slope / static_cast<double>(row.size());
}

// The clipped ratio is a constant: no token loses its gradient. verl's range around 1 (TRL's cap is absolute).
void cispo(const PolicyRow& row, const PolicyParams& p, PolicyRowResult& out) {
  for (size_t t = 0; t < row.size(); ++t) {
    const double r = clamped_ratio(row.log_probs[t], row.old_log_probs[t]).value;
    const double bounded = std::clamp(r, 1.0 - p.clip_ratio_low, 1.0 + p.clip_ratio_high);
    out.clipped += bounded != r;
    out.loss[t] = -bounded * row.advantages[t] * row.log_probs[t];
    out.grad[t] = row.weights[t] * -bounded * row.advantages[t];
  }
}

void sapo(const PolicyRow& row, const PolicyParams& p, PolicyRowResult& out) {
  for (size_t t = 0; t < row.size(); ++t) {
    const Ratio r = clamped_ratio(row.log_probs[t], row.old_log_probs[t]);
    const double a = row.advantages[t];
    const double tau = a > 0.0 ? p.tau_pos : p.tau_neg;
    const double gate = 1.0 / (1.0 + det_exp(-tau * (r.value - 1.0)));
    out.loss[t] = -a * gate * 4.0 / tau;
    out.grad[t] = row.weights[t] * -a * 4.0 * gate * (1.0 - gate) * r.grad;
  }
}

// Geometric mean of ratios that are clipped in log space where that lowers the objective; the row's advantage is its mean.
// Correction weights enter by their geometric mean too, as in verl (which adds 1e-10 so that a zero weight does not annul the
// row).
void gmpo(const PolicyRow& row, const PolicyParams& p, PolicyRowResult& out) {
  const auto n = static_cast<double>(row.size());
  double log_sum = 0;
  double advantage_sum = 0;
  double weight_sum = 0;
  double correction_sum = 0;
  double log_correction_sum = 0;
  for (size_t t = 0; t < row.size(); ++t) {
    const double d = row.log_probs[t] - row.old_log_probs[t];
    const double bounded = std::clamp(d, -p.clip_ratio_low, p.clip_ratio_high);
    const double a = row.advantages[t];
    const double used = a > 0.0 ? std::min(d, bounded) : a < 0.0 ? std::max(d, bounded) : 0.0;
    out.grad[t] = a != 0.0 && used == d ? 1.0 : 0.0;
    out.clipped += a > 0.0 && bounded != d;
    out.clipped_lower += a < 0.0 && bounded != d;
    log_sum += used;
    advantage_sum += a;
    weight_sum += row.weights[t];
    correction_sum += row.correction_weights[t];
    log_correction_sum += det_log(std::max(row.correction_weights[t], 1e-10));
  }
  // Every token holds the row's loss, scaled so that their weighted sum has the geometric instead of the mean correction weight.
  const double correction = correction_sum > 0.0 ? n * det_exp(log_correction_sum / n) / correction_sum : 0.0;
  const double loss = -advantage_sum / n * det_exp(log_sum / n) * correction;
  for (size_t t = 0; t < row.size(); ++t) {
    out.loss[t] = loss;
    out.grad[t] *= weight_sum * loss / n;
  }
}

// -A log p: gpg, and reinforce when the advantages are its own.
void reinforce(const PolicyRow& row, const PolicyParams&, PolicyRowResult& out) {
  for (size_t t = 0; t < row.size(); ++t) {
    out.loss[t] = -row.advantages[t] * row.log_probs[t];
    out.grad[t] = row.weights[t] * -row.advantages[t];
  }
}

std::vector<std::string> names(const PolicyLossRegistry& registry) {
  std::vector<std::string> out;
  for (const auto& entry : registry) out.push_back(entry.first);
  return out;
}

}  // namespace

PolicyLossRegistry builtin_policy_losses() {
  return {
      {"vanilla", {vanilla}},
      {"gspo", {gspo}},
      {"gspo_token", {gspo}},
      {"gspo_sequence", {gspo_sequence}},
      {"cispo", {cispo}},
      {"sapo", {sapo}},
      {"gmpo", {gmpo, /*needs_seq_mean=*/true}},
      {"gpg", {reinforce}},
      {"reinforce", {reinforce}},
  };
}

const PolicyLoss& find_policy_loss(const PolicyLossRegistry& registry, const std::string& name) {
  const auto it = registry.find(name);
  if (it == registry.end()) {
    throw ValueError(fmt::format("unknown policy loss `{}`; known: {}", name, fmt::join(names(registry), ", ")));
  }
  return it->second;
}

void check_policy_params(const std::string& name, const PolicyLoss& loss, const PolicyParams& p, AggregationMode mode) {
  if (loss.needs_seq_mean && mode != AggregationMode::kSeqMeanTokenMean) {
    throw ValueError(fmt::format("policy loss `{}` is one number a row: it needs loss_agg_mode seq-mean-token-mean, not {}", name,
                                 aggregation_mode_name(mode)));
  }
  if (!(p.clip_ratio_low >= 0.0)) throw ValueError(fmt::format("clip_ratio_low is {}; it must be 0 or more", p.clip_ratio_low));
  if (!(p.clip_ratio_high >= 0.0))
    throw ValueError(fmt::format("clip_ratio_high is {}; it must be 0 or more", p.clip_ratio_high));
  if (p.clip_ratio_c != 0.0 && !(p.clip_ratio_c > 1.0)) {
    throw ValueError(fmt::format("clip_ratio_c is {}; it must be above 1, or 0 to switch the dual clip off", p.clip_ratio_c));
  }
  if (!(p.tau_pos > 0.0 && p.tau_neg > 0.0)) {
    throw ValueError(fmt::format("tau_pos is {} and tau_neg {}; both must be above 0", p.tau_pos, p.tau_neg));
  }
}

PolicyLossResult policy_loss(const PolicyLoss& loss, const PolicyParams& params, const PolicyBatch& batch,
                             const Aggregation& aggregation) {
  const PackedRows& rows = batch.rows;
  check_rows(rows);
  check_size("log_probs", batch.log_probs.size(), rows.tokens());
  check_size("old_log_probs", batch.old_log_probs.size(), rows.tokens());
  check_size("advantages", batch.advantages.size(), rows.tokens());
  if (!batch.rollout_log_probs.empty()) check_size("rollout_log_probs", batch.rollout_log_probs.size(), rows.tokens());
  if (!batch.correction_weights.empty()) check_size("correction_weights", batch.correction_weights.size(), rows.tokens());

  PolicyLossResult out;
  out.grad.assign(rows.tokens(), 0.0);
  std::vector<int64_t> kept;
  std::vector<double> log_probs, old_log_probs, rollout_log_probs, advantages, corrections, weights, token_loss, token_grad;
  const auto gather = [&kept](std::span<const double> from, std::vector<double>& to) {
    to.clear();
    if (from.empty()) return;
    for (int64_t t : kept) to.push_back(from[t]);
  };
  for (int64_t i = 0; i < rows.count(); ++i) {
    kept.clear();
    for (int64_t t = rows.offsets[i]; t < rows.offsets[i + 1]; ++t) {
      if (rows.mask[t]) kept.push_back(t);
    }
    if (kept.empty()) continue;
    gather(batch.log_probs, log_probs);
    gather(batch.old_log_probs, old_log_probs);
    gather(batch.rollout_log_probs, rollout_log_probs);
    gather(batch.advantages, advantages);
    gather(batch.correction_weights, corrections);
    corrections.resize(kept.size(), 1.0);
    const double weight = token_weight(aggregation, static_cast<int64_t>(kept.size()));
    weights.clear();
    for (double c : corrections) weights.push_back(weight * c);
    token_loss.assign(kept.size(), 0.0);
    token_grad.assign(kept.size(), 0.0);
    PolicyRowResult row_result{token_loss, token_grad};
    loss.fn({log_probs, old_log_probs, rollout_log_probs, advantages, corrections, weights}, params, row_result);
    for (size_t k = 0; k < kept.size(); ++k) {
      out.loss += weights[k] * token_loss[k];
      out.grad[kept[k]] = token_grad[k];
      out.old_kl += old_log_probs[k] - log_probs[k];
    }
    out.tokens += static_cast<double>(kept.size());
    out.clipped += row_result.clipped;
    out.clipped_lower += row_result.clipped_lower;
  }
  return out;
}

}  // namespace weft
