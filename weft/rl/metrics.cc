#include "weft/rl/metrics.h"

#include <algorithm>
#include <cmath>

#include "weft/base/math.h"

namespace weft {
namespace {

constexpr double kLn2 = 0x1.62e42fefa39efp-1;

double share(double sum, double count) { return count > 0 ? sum / count : 0.0; }

}  // namespace

void LogProbGap::merge(const LogProbGap& other) {
  tokens += other.tokens;
  rows += other.rows;
  sum_difference += other.sum_difference;
  sum_absolute += other.sum_absolute;
  max_absolute = std::max(max_absolute, other.max_absolute);
  sum_k3 += other.sum_k3;
  ratio_above_2 += other.ratio_above_2;
  sum_ratio += other.sum_ratio;
  sum_ratio_squared += other.sum_ratio_squared;
  sum_row_ratio_squared += other.sum_row_ratio_squared;
  sum_from_perplexity += other.sum_from_perplexity;
  sum_to_perplexity += other.sum_to_perplexity;
}

double LogProbGap::kl() const { return share(sum_difference, tokens); }
double LogProbGap::k3() const { return share(sum_k3, tokens); }
double LogProbGap::mean_absolute() const { return share(sum_absolute, tokens); }
double LogProbGap::ratio_above_2_share() const { return share(ratio_above_2, tokens); }
double LogProbGap::chi2_token() const { return share(sum_ratio_squared - tokens, tokens); }
double LogProbGap::chi2_sequence() const { return share(sum_row_ratio_squared - rows, rows); }
double LogProbGap::effective_sample_size() const { return share(sum_ratio * sum_ratio, tokens * sum_ratio_squared); }
double LogProbGap::from_perplexity() const { return share(sum_from_perplexity, rows); }
double LogProbGap::to_perplexity() const { return share(sum_to_perplexity, rows); }

LogProbGap log_prob_gap(const PackedRows& rows, std::span<const double> from, std::span<const double> to) {
  check_rows(rows);
  check_size("from", from.size(), rows.tokens());
  check_size("to", to.size(), rows.tokens());
  LogProbGap out;
  for (int64_t i = 0; i < rows.count(); ++i) {
    double n = 0, log_ratio_sum = 0, from_sum = 0, to_sum = 0;
    for (int64_t t = rows.offsets[i]; t < rows.offsets[i + 1]; ++t) {
      if (!rows.mask[t]) continue;
      const double d = to[t] - from[t];
      const double ratio = det_exp(std::clamp(d, -kLogRatioLimit, kLogRatioLimit));
      out.sum_difference -= d;
      out.sum_absolute += std::fabs(d);
      out.max_absolute = std::max(out.max_absolute, std::fabs(d));
      out.sum_k3 += det_exp(d) - d - 1.0;
      out.ratio_above_2 += std::fabs(d) > kLn2;
      out.sum_ratio += ratio;
      out.sum_ratio_squared += ratio * ratio;
      n += 1;
      log_ratio_sum += d;
      from_sum += from[t];
      to_sum += to[t];
    }
    if (n == 0) continue;
    out.tokens += n;
    out.rows += 1;
    out.sum_row_ratio_squared += det_exp(2.0 * std::clamp(log_ratio_sum, -kLogRatioLimit, kLogRatioLimit));
    out.sum_from_perplexity += det_exp(-from_sum / n);
    out.sum_to_perplexity += det_exp(-to_sum / n);
  }
  return out;
}

}  // namespace weft
