#include "weft/train/step_advantages.h"

#include <cmath>

#include "weft/rl/correction.h"
#include "weft/rl/grpo.h"
#include "weft/rl/kl.h"
#include "weft/rl/metrics.h"
#include "weft/train/step_metrics.h"

namespace weft {
namespace {

// Weights of the recipe's rollout correction (empty: none); rejected tokens leave the mask, hence the denominators.
std::vector<double> correct(const RolloutCorrectionRecipe& c, const std::vector<int64_t>& offsets, const std::vector<double>& old,
                            const std::vector<double>& rollout, std::vector<uint8_t>& mask, MetricsRow& row) {
  CorrectionOptions options;
  options.level = parse_importance_level(c.rollout_is);
  if (options.level != ImportanceLevel::kNone) parse_importance_threshold(c.rollout_is_threshold, &options);
  options.batch_normalize = c.rollout_is_batch_normalize;
  if (!c.rollout_rs.empty() && c.rollout_rs != "null") options.rejections = parse_rejection_rules(c.rollout_rs, c.rollout_rs_threshold);
  if (options.level == ImportanceLevel::kNone && options.rejections.empty()) return {};
  CorrectionResult r = rollout_correction({offsets, mask}, old, rollout, options);
  row.set("rollout_corr/is_mean", r.weight_mean);
  row.set("rollout_corr/is_max", r.weight_max);
  row.set("rollout_corr/is_outside", r.outside_fraction);
  row.set("rollout_corr/rejected_tokens", r.rejected_tokens);
  row.set("rollout_corr/rejected_rows", r.rejected_rows);
  mask = std::move(r.mask);
  return options.level == ImportanceLevel::kNone ? std::vector<double>() : std::move(r.weights);
}

}  // namespace

void compute_advantages(const Recipe& recipe, const Registry& registry, double kl_coef, StepData& data, MetricsRow& row) {
  const size_t count = data.samples.size();
  const bool has_reference = !data.ref_log_probs.empty();
  std::vector<int64_t> offsets{0}, groups;
  std::vector<uint8_t> mask;
  std::vector<double> rewards, old_flat, ref_flat;
  for (size_t i = 0; i < count; ++i) {
    const Trajectory& t = data.samples[i].trajectory;
    const bool off = !t.reward_valid || (recipe.actor.mask_truncated && t.finish_reason == "length");
    for (size_t j = 0; j < t.response_ids.size(); ++j) mask.push_back(off ? 0 : t.response_mask[j]);
    offsets.push_back(static_cast<int64_t>(mask.size()));
    groups.push_back(static_cast<int64_t>(i) / recipe.rollout.n);
    rewards.push_back(t.reward_valid ? t.reward : NAN);
    old_flat.insert(old_flat.end(), data.old_log_probs[i].begin(), data.old_log_probs[i].end());
    if (has_reference) ref_flat.insert(ref_flat.end(), data.ref_log_probs[i].begin(), data.ref_log_probs[i].end());
  }
  std::vector<double> rollout_flat;
  for (const Trajectory* t : data.trajectories) rollout_flat.insert(rollout_flat.end(), t->rollout_log_probs.begin(), t->rollout_log_probs.end());
  const std::vector<double> weights = correct(recipe.algorithm.rollout_correction, offsets, old_flat, rollout_flat, mask, row);
  const PackedRows rows{offsets, mask};
  std::vector<double> token_rewards = rewards_on_last_token(rows, rewards);
  if (recipe.algorithm.use_kl_in_reward) {
    const auto penalty = kl_in_reward(parse_kl_kind(recipe.algorithm.kl_penalty), kl_coef, rows, old_flat, ref_flat);
    const auto sums = row_sums(rows, penalty);
    for (size_t i = 0; i < rewards.size(); ++i) rewards[i] -= sums[i];
    for (size_t i = 0; i < token_rewards.size(); ++i) token_rewards[i] -= penalty[i];
    double total = 0, tokens = 0;
    for (size_t i = 0; i < penalty.size(); ++i) total += penalty[i], tokens += mask[i];
    row.set("actor/reward_kl_penalty", tokens > 0 ? total / tokens : 0.0);
  }
  AdvantageBatch batch;
  batch.rows = rows;
  batch.rewards = rewards;
  batch.groups = groups;
  batch.token_rewards = token_rewards;
  AdvantageParams params;
  params.norm_adv_by_std_in_grpo = recipe.algorithm.norm_adv_by_std_in_grpo;
  params.adv_eps = recipe.algorithm.adv_eps;
  params.gamma = recipe.algorithm.gamma;
  const Advantages advantages = find_advantage(registry.advantages, recipe.algorithm.adv_estimator)(batch, params);
  data.advantages.clear(), data.masks.clear(), data.weights.clear();
  for (size_t i = 0; i < count; ++i) {
    data.advantages.emplace_back(advantages.advantages.begin() + offsets[i], advantages.advantages.begin() + offsets[i + 1]);
    data.masks.emplace_back(mask.begin() + offsets[i], mask.begin() + offsets[i + 1]);
    if (!weights.empty()) data.weights.emplace_back(weights.begin() + offsets[i], weights.begin() + offsets[i + 1]);
  }
  row.set("reward/frac_zero_std", fraction_zero_std(rewards, groups));
  add_gap_metrics("rollout_corr/", log_prob_gap(rows, rollout_flat, old_flat), row);
}

}  // namespace weft
