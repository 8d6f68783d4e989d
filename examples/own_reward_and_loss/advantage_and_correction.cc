// An advantage estimator and a rollout correction of one's own: main.cc adds them, the recipe's comments name them.
#include <algorithm>
#include <cmath>
#include <map>

#include "weft/base/math.h"
#include "weft/cli/weft.h"

// Reward minus the median of the group, the same for each token that counts; rows without a reward get 0.
weft::Advantages median_baseline(const weft::AdvantageBatch& batch, const weft::AdvantageParams&) {
  std::map<int64_t, std::vector<double>> groups;
  for (size_t i = 0; i < batch.rewards.size(); ++i)
    if (!std::isnan(batch.rewards[i])) groups[batch.groups[i]].push_back(batch.rewards[i]);
  for (auto& [id, rewards] : groups) std::sort(rewards.begin(), rewards.end());
  weft::Advantages out;
  out.advantages.assign(batch.rows.mask.size(), 0.0);
  for (size_t i = 0; i < batch.rewards.size(); ++i) {
    if (std::isnan(batch.rewards[i])) continue;
    const std::vector<double>& group = groups[batch.groups[i]];
    const double median = 0.5 * (group[(group.size() - 1) / 2] + group[group.size() / 2]);
    for (auto t = static_cast<size_t>(batch.rows.offsets[i]); t < static_cast<size_t>(batch.rows.offsets[i + 1]); ++t)
      if (batch.rows.mask[t]) out.advantages[t] = batch.rewards[i] - median;
  }
  out.returns = out.advantages;
  return out;
}

// Importance weights that fade instead of being cut: rho where the trainer likes the token less than the rollout did, else its root.
std::vector<double> soft_weights(const weft::PackedRows& rows, std::span<const double> old, std::span<const double> rollout) {
  std::vector<double> weights(rows.mask.size(), 0.0);
  for (size_t t = 0; t < weights.size(); ++t) {
    if (!rows.mask[t]) continue;
    const double gap = std::clamp(old[t] - rollout[t], -20.0, 20.0);
    weights[t] = weft::det_exp(gap > 0 ? 0.5 * gap : gap);
  }
  return weights;
}

void add_own_algorithms(weft::Registry& registry) {
  registry.advantages["median"] = median_baseline;  // algorithm.adv_estimator = "median"
  registry.corrections["soft"] = soft_weights;      // algorithm.rollout_correction.rollout_is = "soft"
}
