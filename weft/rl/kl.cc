#include "weft/rl/kl.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/math.h"

namespace weft {
namespace {

constexpr double kK3Limit = 10.0;

constexpr std::array<std::pair<const char*, KlEstimator>, 7> kNames = {{
    {"k1", KlEstimator::kK1},
    {"kl", KlEstimator::kK1},
    {"k2", KlEstimator::kK2},
    {"mse", KlEstimator::kK2},
    {"k3", KlEstimator::kK3},
    {"low_var_kl", KlEstimator::kK3},
    {"abs", KlEstimator::kAbs},
}};

KlTerm plain_term(KlEstimator estimator, double d) {
  switch (estimator) {
    case KlEstimator::kK1: return {d, 1.0};
    case KlEstimator::kK2: return {0.5 * d * d, d};
    case KlEstimator::kAbs: return {std::fabs(d), d > 0.0 ? 1.0 : d < 0.0 ? -1.0 : 0.0};
    case KlEstimator::kK3: {
      const double e = std::clamp(-d, -kLogRatioLimit, kLogRatioLimit);
      const double ratio = det_exp(e);
      const double value = ratio - e - 1.0;
      if (value > kK3Limit) return {kK3Limit, 0.0};
      return {value, e != -d ? 0.0 : 1.0 - ratio};
    }
  }
  throw InternalError("unknown KL estimator");
}

}  // namespace

KlKind parse_kl_kind(const std::string& name) {
  KlKind out;
  std::string stem = name;
  if (stem.ends_with('+')) {
    out.straight_through = true;
    stem.pop_back();
  }
  std::string known;
  for (const auto& [text, estimator] : kNames) {
    if (stem == text) {
      out.estimator = estimator;
      return out;
    }
    known += std::string(text) + ", ";
  }
  throw ValueError(fmt::format("unknown KL estimator `{}`; known: {}each also with a + at the end", name, known));
}

KlTerm kl_term(KlKind kind, double log_prob, double ref_log_prob) {
  const double d = log_prob - ref_log_prob;
  KlTerm term = plain_term(kind.estimator, d);
  if (kind.straight_through) term.grad = d;
  return term;
}

KlLossResult kl_loss(const KlLossOptions& options, const PackedRows& rows, std::span<const double> log_probs,
                     std::span<const double> old_log_probs, std::span<const double> ref_log_probs,
                     const Aggregation& aggregation) {
  check_rows(rows);
  check_size("log_probs", log_probs.size(), rows.tokens());
  check_size("ref_log_probs", ref_log_probs.size(), rows.tokens());
  if (options.unbiased) check_size("old_log_probs", old_log_probs.size(), rows.tokens());
  KlLossResult out;
  out.grad.assign(rows.tokens(), 0.0);
  for (int64_t i = 0; i < rows.count(); ++i) {
    const double weight = options.coef * token_weight(aggregation, row_tokens(rows, i));
    for (int64_t t = rows.offsets[i]; t < rows.offsets[i + 1]; ++t) {
      if (!rows.mask[t]) continue;
      KlTerm term = kl_term(options.kind, log_probs[t], ref_log_probs[t]);
      out.kl_sum += term.value;
      out.tokens += 1;
      if (options.unbiased) {
        const double d = log_probs[t] - old_log_probs[t];
        const double bounded = std::clamp(d, -kLogRatioLimit, kLogRatioLimit);
        const double ratio = det_exp(bounded);
        term.grad = ratio * (term.grad + (bounded != d ? 0.0 : term.value));
        term.value *= ratio;
      }
      out.loss += weight * term.value;
      out.grad[t] = weight * term.grad;
    }
  }
  return out;
}

std::vector<double> kl_in_reward(KlKind kind, double coef, const PackedRows& rows, std::span<const double> old_log_probs,
                                 std::span<const double> ref_log_probs) {
  check_rows(rows);
  check_size("old_log_probs", old_log_probs.size(), rows.tokens());
  check_size("ref_log_probs", ref_log_probs.size(), rows.tokens());
  std::vector<double> out(rows.tokens(), 0.0);
  for (int64_t t = 0; t < rows.tokens(); ++t) {
    if (rows.mask[t]) out[t] = coef * kl_term(kind, old_log_probs[t], ref_log_probs[t]).value;
  }
  return out;
}

std::vector<double> row_sums(const PackedRows& rows, std::span<const double> values) {
  check_rows(rows);
  check_size("values", values.size(), rows.tokens());
  std::vector<double> out(rows.count(), 0.0);
  for (int64_t i = 0; i < rows.count(); ++i) {
    for (int64_t t = rows.offsets[i]; t < rows.offsets[i + 1]; ++t) {
      if (rows.mask[t]) out[i] += values[t];
    }
  }
  return out;
}

AdaptiveKlController::AdaptiveKlController(double coef, double target, double horizon)
    : coef_(coef), target_(target), horizon_(horizon) {
  if (!(coef >= 0.0 && target > 0.0 && horizon > 0.0)) {
    throw ValueError(
        fmt::format("adaptive KL: coef {} must be 0 or more, target {} and horizon {} above 0", coef, target, horizon));
  }
}

void AdaptiveKlController::update(double kl, double rows) {
  coef_ *= 1.0 + std::clamp(kl / target_ - 1.0, -0.2, 0.2) * rows / horizon_;
}

}  // namespace weft
