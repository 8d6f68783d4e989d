#include "weft/rl/correction.h"

#include <fmt/format.h>

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/math.h"

namespace weft {
namespace {

double clamp_log(double value) { return std::clamp(value, -kLogRatioLimit, kLogRatioLimit); }

struct Row {
  std::vector<int64_t> kept;       // token indices that count
  std::vector<double> log_ratios;  // old - rollout, unclamped
};

Row gather(const PackedRows& rows, int64_t i, std::span<const double> old_log_probs, std::span<const double> rollout_log_probs) {
  Row out;
  for (int64_t t = rows.offsets[i]; t < rows.offsets[i + 1]; ++t) {
    if (!rows.mask[t]) continue;
    out.kept.push_back(t);
    out.log_ratios.push_back(old_log_probs[t] - rollout_log_probs[t]);
  }
  return out;
}

double sum_of(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += v;
  return sum;
}

double statistic(RejectionRule::Statistic kind, double log_ratio) {
  const double e = clamp_log(log_ratio);
  switch (kind) {
    case RejectionRule::Statistic::kK1: return -e;
    case RejectionRule::Statistic::kK2: return 0.5 * e * e;
    case RejectionRule::Statistic::kK3: return det_exp(e) - 1.0 - e;
  }
  return 0.0;
}

bool keeps(const RejectionRule& rule, double value) {
  if (rule.statistic != RejectionRule::Statistic::kK1) return value <= rule.upper;
  return value >= det_log(rule.lower) && value <= det_log(rule.upper);
}

void reject(const RejectionRule& rule, const Row& row, std::vector<uint8_t>& mask) {
  std::vector<double> values;
  for (double log_ratio : row.log_ratios) values.push_back(statistic(rule.statistic, log_ratio));
  if (rule.scope == RejectionRule::Scope::kToken) {
    for (size_t k = 0; k < values.size(); ++k) {
      if (!keeps(rule, values[k])) mask[row.kept[k]] = 0;
    }
    return;
  }
  double value = rule.scope == RejectionRule::Scope::kMax ? *std::max_element(values.begin(), values.end()) : sum_of(values);
  if (rule.scope == RejectionRule::Scope::kMean) value /= static_cast<double>(values.size());
  if (keeps(rule, value)) return;
  for (int64_t t : row.kept) mask[t] = 0;
}

// Fills the row's weights before truncation.
void raw_weights(ImportanceLevel level, const Row& row, std::vector<double>& weights) {
  const double sum = sum_of(row.log_ratios);
  const double whole = level == ImportanceLevel::kSequence ? sum : sum / static_cast<double>(row.kept.size());
  for (size_t k = 0; k < row.kept.size(); ++k) {
    weights[row.kept[k]] = det_exp(clamp_log(level == ImportanceLevel::kToken ? row.log_ratios[k] : whole));
  }
}

void weight_statistics(const PackedRows& rows, CorrectionResult& out) {
  double n = 0, sum = 0, squares = 0;
  for (int64_t t = 0; t < rows.tokens(); ++t) {
    if (!rows.mask[t]) continue;
    const double w = out.weights[t];
    out.weight_max = n == 0 ? w : std::max(out.weight_max, w);
    out.weight_min = n == 0 ? w : std::min(out.weight_min, w);
    n += 1;
    sum += w;
    squares += w * w;
  }
  if (n == 0) return;
  out.weight_mean = sum / n;
  out.outside_fraction /= n;
  if (squares > 0) out.effective_sample_size = sum * sum / (n * squares);
}

// Mean weight over tokens, or over rows of the row's (constant) weight.
double normaliser(const PackedRows& rows, const CorrectionResult& result, ImportanceLevel level) {
  if (level == ImportanceLevel::kToken) return result.weight_mean;
  double sum = 0, count = 0;
  for (int64_t i = 0; i < rows.count(); ++i) {
    for (int64_t t = rows.offsets[i]; t < rows.offsets[i + 1]; ++t) {
      if (!rows.mask[t]) continue;
      sum += result.weights[t];
      count += 1;
      break;
    }
  }
  return count > 0 ? sum / count : 0.0;
}

}  // namespace

CorrectionResult rollout_correction(const PackedRows& rows, std::span<const double> old_log_probs,
                                    std::span<const double> rollout_log_probs, const CorrectionOptions& options) {
  check_rows(rows);
  check_size("old_log_probs", old_log_probs.size(), rows.tokens());
  check_size("rollout_log_probs", rollout_log_probs.size(), rows.tokens());
  CorrectionResult out;
  out.weights.assign(rows.tokens(), 0.0);
  out.mask.assign(rows.mask.begin(), rows.mask.end());
  double tokens = 0, lost_tokens = 0, nonempty = 0, lost_rows = 0;
  for (int64_t i = 0; i < rows.count(); ++i) {
    const Row row = gather(rows, i, old_log_probs, rollout_log_probs);
    if (row.kept.empty()) continue;
    if (options.level == ImportanceLevel::kNone) {
      for (int64_t t : row.kept) out.weights[t] = 1.0;
    } else {
      raw_weights(options.level, row, out.weights);
      for (int64_t t : row.kept) {
        double& w = out.weights[t];
        if (w >= options.lower && w <= options.upper) continue;
        out.outside_fraction += 1;
        w = options.mask_outside ? 0.0 : std::clamp(w, options.lower, options.upper);
      }
    }
    for (const RejectionRule& rule : options.rejections) reject(rule, row, out.mask);
    const double lowest = *std::min_element(row.log_ratios.begin(), row.log_ratios.end());
    if (options.veto > 0.0 && lowest < det_log(options.veto)) {
      for (int64_t t : row.kept) out.mask[t] = 0;
    }
    const auto lost =
        static_cast<double>(std::count_if(row.kept.begin(), row.kept.end(), [&](int64_t t) { return !out.mask[t]; }));
    tokens += static_cast<double>(row.kept.size());
    lost_tokens += lost;
    nonempty += 1;
    lost_rows += lost > 0;
  }
  if (tokens == 0) return out;
  out.rejected_tokens = lost_tokens / tokens;
  out.rejected_rows = lost_rows / nonempty;
  PackedRows weighed = rows;
  if (options.own) {
    weighed.mask = out.mask;
    out.weights = options.own(weighed, old_log_probs, rollout_log_probs);
    if (out.weights.size() != out.mask.size())
      throw ValueError(fmt::format("the rollout correction returned {} weights for {} tokens", out.weights.size(), out.mask.size()));
    for (size_t t = 0; t < out.mask.size(); ++t)
      if (!out.mask[t]) out.weights[t] = 0.0;
  }
  weight_statistics(weighed, out);
  if (options.batch_normalize && (options.own || options.level != ImportanceLevel::kNone)) {
    const double factor = normaliser(weighed, out, options.own ? ImportanceLevel::kToken : options.level);
    if (factor > 1e-8) {
      out.norm_factor = factor;
      for (double& w : out.weights) w /= factor;
    }
  }
  return out;
}

std::vector<double> off_policy_sequence_mask(const PackedRows& rows, std::span<const double> reference_log_probs,
                                             std::span<const double> log_probs, std::span<const double> advantages,
                                             double threshold) {
  check_rows(rows);
  check_size("reference_log_probs", reference_log_probs.size(), rows.tokens());
  check_size("log_probs", log_probs.size(), rows.tokens());
  check_size("advantages", advantages.size(), rows.tokens());
  std::vector<double> out(rows.tokens(), 1.0);
  for (int64_t i = 0; i < rows.count(); ++i) {
    double gap = 0, advantage = 0, n = 0;
    for (int64_t t = rows.offsets[i]; t < rows.offsets[i + 1]; ++t) {
      if (!rows.mask[t]) continue;
      gap += reference_log_probs[t] - log_probs[t];
      advantage += advantages[t];
      n += 1;
    }
    if (n == 0 || advantage >= 0.0 || gap / n <= threshold) continue;
    std::fill(out.begin() + rows.offsets[i], out.begin() + rows.offsets[i + 1], 0.0);
  }
  return out;
}

}  // namespace weft
