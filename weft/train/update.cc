#include "weft/train/update.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/base/signals.h"
#include "weft/parallel/fully_shard.h"
#include "weft/rl/correction.h"

namespace weft {
namespace {

struct Field {
  const char* name;
  double UpdateSums::*member;
};
constexpr Field kFields[] = {{"updates", &UpdateSums::updates},         {"pg_loss", &UpdateSums::pg_loss},
                             {"kl_loss", &UpdateSums::kl_loss},         {"entropy_loss", &UpdateSums::entropy_loss},
                             {"grad_norm", &UpdateSums::grad_norm},     {"lr", &UpdateSums::lr},
                             {"tokens", &UpdateSums::tokens},           {"clipped", &UpdateSums::clipped},
                             {"clipped_lower", &UpdateSums::clipped_lower}, {"old_kl", &UpdateSums::old_kl},
                             {"kl_sum", &UpdateSums::kl_sum},           {"entropy_sum", &UpdateSums::entropy_sum},
                             {"old_k3", &UpdateSums::old_k3},           {"old_max_abs", &UpdateSums::old_max_abs},
                             {"old_ratio_above_2", &UpdateSums::old_ratio_above_2},
                             {"off_policy_masked", &UpdateSums::off_policy_masked}};

template <class T>
void append(std::vector<double>& out, const std::vector<T>& values) {
  out.insert(out.end(), values.begin(), values.end());
}

// Consecutive members of the mini-batch, flat.
struct TokenData {
  std::vector<double> old, ref, advantages, rollout, weights;
  std::vector<uint8_t> mask;
};

TokenData token_data(const UpdateContext& context, size_t first, size_t count) {
  TokenData d;
  for (size_t i = first; i < first + count; ++i) {
    const size_t sample = (*context.members)[i];
    append(d.old, (*context.old_log_probs)[sample]);
    append(d.rollout, (*context.trajectories)[sample]->rollout_log_probs);
    append(d.advantages, (*context.advantages)[sample]);
    if (!context.ref_log_probs->empty()) append(d.ref, (*context.ref_log_probs)[sample]);
    if (context.weights && !context.weights->empty()) append(d.weights, (*context.weights)[sample]);
    d.mask.insert(d.mask.end(), (*context.masks)[sample].begin(), (*context.masks)[sample].end());
  }
  return d;
}

// The loss of these rows: its gradients, and what is reported of it.
TokenGradients row_losses(const ActorOutput& out, TokenData d, const UpdateOptions& options, const Aggregation& aggregation, UpdateSums& sums) {
  const PackedRows rows{out.offsets, d.mask};
  const std::vector<double> log_probs = widen(out.log_probs), entropy = widen(out.entropy);
  if (options.off_policy_mask_threshold > 0) {
    const std::vector<double> factor = off_policy_sequence_mask(rows, d.rollout, log_probs, d.advantages, options.off_policy_mask_threshold);
    if (d.weights.empty()) d.weights.assign(factor.size(), 1.0);
    for (size_t t = 0; t < factor.size(); ++t) {
      d.weights[t] *= factor[t];
      sums.off_policy_masked += d.mask[t] && factor[t] == 0;
    }
  }
  PolicyLossResult policy =
      policy_loss(*options.loss, options.params, {rows, log_probs, d.old, d.rollout, d.advantages, d.weights}, aggregation);
  TokenGradients g;
  g.log_probs = std::move(policy.grad);
  sums.pg_loss += policy.loss;
  sums.tokens += policy.tokens;
  sums.clipped += policy.clipped;
  sums.clipped_lower += policy.clipped_lower;
  sums.old_kl += policy.old_kl;
  const LogProbGap gap = log_prob_gap(rows, d.old, log_probs);
  sums.old_k3 += gap.sum_k3;
  sums.old_ratio_above_2 += gap.ratio_above_2;
  sums.old_max_abs = std::max(sums.old_max_abs, gap.max_absolute);
  if (options.use_kl_loss) {
    const KlLossResult kl = kl_loss(options.kl, rows, log_probs, d.old, d.ref, aggregation);
    for (size_t t = 0; t < kl.grad.size(); ++t) g.log_probs[t] += kl.grad[t];
    sums.kl_loss += kl.loss;
    sums.kl_sum += kl.kl_sum;
  }
  for (size_t t = 0; t < entropy.size(); ++t) sums.entropy_sum += d.mask[t] ? entropy[t] : 0.0;
  if (options.entropy_coeff != 0.0) {
    const AggregateResult bonus = aggregate(rows, entropy, aggregation);
    sums.entropy_loss -= options.entropy_coeff * bonus.value;
    g.entropy = bonus.grad;
    for (double& x : g.entropy) x *= -options.entropy_coeff;
  }
  return g;
}

}  // namespace

void UpdateSums::merge(const UpdateSums& other) {
  const double last_lr = other.lr, largest = std::max(old_max_abs, other.old_max_abs);
  for (const Field& f : kFields) this->*f.member += other.*f.member;
  lr = last_lr;
  old_max_abs = largest;
}

void UpdateSums::check_finite(int64_t step) const {
  if (!std::isfinite(pg_loss + kl_loss + entropy_loss))
    throw ValueError(fmt::format("the loss of step {} is not finite (policy {}, KL {}, entropy {}): nothing was updated", step, pg_loss, kl_loss,
                                 entropy_loss));
}

void UpdateSums::report(MetricsRow& row) const {
  const double n = updates > 0 ? updates : 1, t = tokens > 0 ? tokens : 1;
  row.set("actor/pg_loss", pg_loss / n);
  row.set("actor/kl_loss", kl_sum / t);
  if (tokens > 0) row.set("actor/entropy", entropy_sum / t);
  row.set("actor/pg_clipfrac", clipped / t);
  row.set("actor/pg_clipfrac_lower", clipped_lower / t);
  row.set("actor/ppo_kl", old_kl / t);
  row.set("staleness/k3_kl", old_k3 / t);
  row.set("staleness/max_abs", old_max_abs);
  row.set("staleness/ratio_above_2", old_ratio_above_2 / t);
  if (off_policy_masked > 0) row.set("actor/off_policy_masked", off_policy_masked / t);
  row.set("actor/grad_norm", grad_norm / n);
  row.set("actor/lr", lr);
}

std::map<std::string, double> UpdateSums::values() const {
  std::map<std::string, double> out;
  for (const Field& f : kFields) out[f.name] = this->*f.member;
  return out;
}

void UpdateSums::restore(const std::map<std::string, double>& values) {
  for (const Field& f : kFields)
    if (const auto it = values.find(f.name); it != values.end()) this->*f.member = it->second;
}

UpdateSums accumulate_gradients(CausalLM& model, const UpdateContext& context, const UpdateOptions& options, const DataParallel& ranks) {
  std::vector<const Trajectory*> members;
  ActorOutput all;  // of the whole mini-batch
  all.offsets.push_back(0);
  for (size_t i : *context.members) {
    members.push_back((*context.trajectories)[i]);
    all.offsets.push_back(all.offsets.back() + static_cast<int64_t>(members.back()->response_ids.size()));
  }
  const TokenData whole = token_data(context, 0, members.size());
  const Aggregation aggregation{options.mode, count_denominators({all.offsets, whole.mask}, options.max_length)};
  ActorOptions actor = options.actor;
  actor.entropy = true;

  const DataParallel::Share share = ranks.share(members, options.max_tokens_per_micro_batch);
  ActorOutput mine;
  size_t member = share.begin[share.mine], left = share.micro_batches.size();
  for (const MicroBatch part : share.micro_batches) {
    set_requires_all_reduce(model, --left == 0);
    const ActorOutput out = actor_backward(model, part, actor, [&](const ActorOutput& o) {
      UpdateSums unused;
      return row_losses(o, token_data(context, member, part.size()), options, aggregation, unused);
    });
    member += part.size();
    mine.log_probs.insert(mine.log_probs.end(), out.log_probs.begin(), out.log_probs.end());
    mine.entropy.insert(mine.entropy.end(), out.entropy.begin(), out.entropy.end());
    if (ranks.any(stop_requested())) throw StoppedError(fmt::format("stopped by {} between micro-batches", stop_signal_name()));
  }
  if (context.trained && ranks.first_of_place())
    for (size_t i = share.begin[share.mine]; i < member; ++i) (*context.trained)[(*context.members)[i]] += 1;
  all.log_probs = ranks.gather_tokens(share, members, mine.log_probs);
  all.entropy = ranks.gather_tokens(share, members, mine.entropy);
  UpdateSums sums;
  sums.updates = 1;
  row_losses(all, whole, options, aggregation, sums);
  return sums;
}

}  // namespace weft
