#include "weft/train/step_advantages.h"

#include <cmath>

#include "weft/base/error.h"
#include "weft/rl/aggregation.h"
#include "weft/rl/correction.h"
#include "weft/rl/dapo.h"
#include "weft/rl/distillation.h"
#include "weft/rl/grpo.h"
#include "weft/rl/kl.h"
#include "weft/rl/metrics.h"
#include "weft/train/step_metrics.h"

namespace weft {
namespace {

// Weights of the recipe's rollout correction (empty: none); rejected tokens leave the mask, hence the denominators.
std::vector<double> correct(const RolloutCorrectionRecipe& c, const CorrectionRegistry& own, const std::vector<int64_t>& offsets,
                            const std::vector<double>& old, const std::vector<double>& rollout, std::vector<uint8_t>& mask,
                            MetricsRow& row) {
  const auto found = own.find(c.rollout_is);
  CorrectionOptions options;
  if (found == own.end()) options.level = parse_importance_level(c.rollout_is);
  if (options.level != ImportanceLevel::kNone) parse_importance_threshold(c.rollout_is_threshold, &options);
  options.batch_normalize = c.rollout_is_batch_normalize;
  if (!c.rollout_rs.empty() && c.rollout_rs != "null") options.rejections = parse_rejection_rules(c.rollout_rs, c.rollout_rs_threshold);
  options.veto = c.rollout_token_veto_threshold;
  const bool weighted = options.level != ImportanceLevel::kNone || found != own.end();
  if (!weighted && options.rejections.empty() && options.veto == 0) return {};
  if (found != own.end()) options.own = found->second;
  CorrectionResult r = rollout_correction({offsets, mask}, old, rollout, options);
  row.set("rollout_corr/is_mean", r.weight_mean);
  row.set("rollout_corr/is_max", r.weight_max);
  row.set("rollout_corr/is_outside", r.outside_fraction);
  row.set("rollout_corr/rejected_tokens", r.rejected_tokens);
  row.set("rollout_corr/rejected_rows", r.rejected_rows);
  mask = std::move(r.mask);
  return weighted ? std::move(r.weights) : std::vector<double>();
}

}  // namespace

void compute_advantages(const Recipe& recipe, const Registry& registry, double kl_coef, StepData& data, MetricsRow& row) {
  const size_t count = data.samples.size();
  const bool has_reference = !data.ref_log_probs.empty();
  std::vector<int64_t> offsets{0}, groups;
  std::vector<uint8_t> mask;
  std::vector<double> rewards, old_flat, ref_flat, teacher_flat, baselines, values;
  const OverlongBufferRecipe& overlong = recipe.reward.overlong_buffer;
  double punishment = 0, punished = 0;
  for (size_t i = 0; i < count; ++i) {
    const Trajectory& t = data.samples[i].trajectory;
    if (!data.baselines.empty()) baselines.push_back(data.baselines[i / static_cast<size_t>(recipe.rollout.n)]);
    const bool rewarded = t.reward_valid && (baselines.empty() || !std::isnan(baselines.back()));
    const bool off = !rewarded || (recipe.actor.mask_truncated && t.finish_reason == "length");
    for (size_t j = 0; j < t.response_ids.size(); ++j) mask.push_back(off ? 0 : t.response_mask[j]);
    offsets.push_back(static_cast<int64_t>(mask.size()));
    groups.push_back(static_cast<int64_t>(i) / recipe.rollout.n);
    rewards.push_back(rewarded ? t.reward : NAN);
    if (overlong.enable && rewarded) {
      const double p = soft_overlong_punishment(static_cast<int64_t>(t.response_ids.size()), recipe.data.max_response_length, overlong.len,
                                                overlong.penalty_factor);
      rewards.back() += p;
      punishment += p, punished += p < 0;
    }
    old_flat.insert(old_flat.end(), data.old_log_probs[i].begin(), data.old_log_probs[i].end());
    if (has_reference) ref_flat.insert(ref_flat.end(), data.ref_log_probs[i].begin(), data.ref_log_probs[i].end());
    if (!data.values.empty()) values.insert(values.end(), data.values[i].begin(), data.values[i].end());
    if (!data.teacher_log_probs.empty())
      teacher_flat.insert(teacher_flat.end(), data.teacher_log_probs[i].begin(), data.teacher_log_probs[i].end());
  }
  if (overlong.enable) {
    row.set("reward/overlong_penalty", punishment / std::max<double>(1, static_cast<double>(count)));
    row.set("reward/overlong_share", punished / std::max<double>(1, static_cast<double>(count)));
  }
  std::vector<double> rollout_flat;
  for (const Trajectory* t : data.trajectories) rollout_flat.insert(rollout_flat.end(), t->rollout_log_probs.begin(), t->rollout_log_probs.end());
  const std::vector<double> weights = correct(recipe.algorithm.rollout_correction, registry.corrections, offsets, old_flat, rollout_flat, mask, row);
  const PackedRows rows{offsets, mask};
  std::vector<double> token_rewards = rewards_on_last_token(rows, rewards);
  if (recipe.algorithm.use_kl_in_reward) {
    const auto divergence = kl_in_reward(parse_kl_kind(recipe.algorithm.kl_penalty), 1.0, rows, old_flat, ref_flat);
    const Denominators denominators = count_denominators(rows);
    data.reference_kl =
        denominators.tokens > 0 ? aggregate(rows, divergence, {AggregationMode::kSeqMeanTokenMean, denominators}).value : NAN;
    std::vector<double> penalty = divergence;
    for (double& d : penalty) d *= kl_coef;
    const auto sums = row_sums(rows, penalty);
    for (size_t i = 0; i < rewards.size(); ++i) rewards[i] -= sums[i];
    for (size_t i = 0; i < token_rewards.size(); ++i) token_rewards[i] -= penalty[i];
    double total = 0;
    for (double d : penalty) total += d;
    row.set("actor/reward_kl_penalty", denominators.tokens > 0 ? total / denominators.tokens : 0.0);
    row.set("actor/reward_kl_coef", kl_coef);
  }
  AdvantageBatch batch;
  batch.rows = rows;
  batch.rewards = rewards;
  batch.groups = groups;
  batch.token_rewards = token_rewards;
  batch.reward_baselines = baselines;
  batch.values = values;
  AdvantageParams params;
  params.norm_adv_by_std_in_grpo = recipe.algorithm.norm_adv_by_std_in_grpo;
  params.adv_eps = recipe.algorithm.adv_eps;
  params.gamma = recipe.algorithm.gamma;
  params.lam = recipe.algorithm.lam;
  Advantages advantages = find_advantage(registry.advantages, recipe.algorithm.adv_estimator)(batch, params);
  if (!teacher_flat.empty()) {
    advantages.advantages =
        distillation_advantages(rows, advantages.advantages, teacher_flat, old_flat, recipe.algorithm.teacher_kl_coef);
    const LogProbGap gap = log_prob_gap(rows, old_flat, teacher_flat);
    row.set("distill/kl", gap.kl());
    row.set("distill/k3_kl", gap.k3());
  }
  data.advantages.clear(), data.returns.clear(), data.masks.clear(), data.weights.clear();
  for (size_t i = 0; i < count; ++i) {
    data.advantages.emplace_back(advantages.advantages.begin() + offsets[i], advantages.advantages.begin() + offsets[i + 1]);
    data.returns.emplace_back(advantages.returns.begin() + offsets[i], advantages.returns.begin() + offsets[i + 1]);
    data.masks.emplace_back(mask.begin() + offsets[i], mask.begin() + offsets[i + 1]);
    if (!weights.empty()) data.weights.emplace_back(weights.begin() + offsets[i], weights.begin() + offsets[i + 1]);
  }
  row.set("reward/frac_zero_std", fraction_zero_std(rewards, groups));
  add_gap_metrics("rollout_corr/", log_prob_gap(rows, rollout_flat, old_flat), row);
}

}  // namespace weft
