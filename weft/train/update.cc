#include "weft/train/update.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/base/signals.h"
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
  row.set("actor/entropy", entropy_sum / t);
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

UpdateSums accumulate_gradients(CausalLM& model, const UpdateContext& context, const UpdateOptions& options) {
  std::vector<const Trajectory*> members;
  std::vector<int64_t> all_offsets{0};
  std::vector<uint8_t> all_mask;
  for (size_t i : *context.members) {
    members.push_back((*context.trajectories)[i]);
    const auto& mask = (*context.masks)[i];
    all_mask.insert(all_mask.end(), mask.begin(), mask.end());
    all_offsets.push_back(static_cast<int64_t>(all_mask.size()));
  }
  const Aggregation aggregation{options.mode, count_denominators({all_offsets, all_mask}, options.max_length)};
  ActorOptions actor = options.actor;
  actor.entropy = true;

  UpdateSums sums;
  sums.updates = 1;
  size_t member = 0;
  for (const MicroBatch part : split_micro_batches(members, options.max_tokens_per_micro_batch)) {
    std::vector<double> old, ref, advantages, rollout, weights;
    std::vector<uint8_t> mask;
    for (size_t i = 0; i < part.size(); ++i) {
      const size_t sample = (*context.members)[member++];
      append(old, (*context.old_log_probs)[sample]);
      append(rollout, (*context.trajectories)[sample]->rollout_log_probs);
      append(advantages, (*context.advantages)[sample]);
      if (!context.ref_log_probs->empty()) append(ref, (*context.ref_log_probs)[sample]);
      if (context.weights && !context.weights->empty()) append(weights, (*context.weights)[sample]);
      mask.insert(mask.end(), (*context.masks)[sample].begin(), (*context.masks)[sample].end());
    }
    actor_backward(model, part, actor, [&](const ActorOutput& out) {
      const PackedRows rows{out.offsets, mask};
      const std::vector<double> log_probs = widen(out.log_probs), entropy = widen(out.entropy);
      if (options.off_policy_mask_threshold > 0) {
        const std::vector<double> factor = off_policy_sequence_mask(rows, rollout, log_probs, advantages, options.off_policy_mask_threshold);
        if (weights.empty()) weights.assign(factor.size(), 1.0);
        for (size_t t = 0; t < factor.size(); ++t) {
          weights[t] *= factor[t];
          sums.off_policy_masked += mask[t] && factor[t] == 0;
        }
      }
      const PolicyBatch batch{rows, log_probs, old, rollout, advantages, weights};
      PolicyLossResult policy = policy_loss(*options.loss, options.params, batch, aggregation);
      TokenGradients g;
      g.log_probs = std::move(policy.grad);
      sums.pg_loss += policy.loss;
      sums.tokens += policy.tokens;
      sums.clipped += policy.clipped;
      sums.clipped_lower += policy.clipped_lower;
      sums.old_kl += policy.old_kl;
      const LogProbGap gap = log_prob_gap(rows, old, log_probs);
      sums.old_k3 += gap.sum_k3;
      sums.old_ratio_above_2 += gap.ratio_above_2;
      sums.old_max_abs = std::max(sums.old_max_abs, gap.max_absolute);
      if (options.use_kl_loss) {
        const KlLossResult kl = kl_loss(options.kl, rows, log_probs, old, ref, aggregation);
        for (size_t t = 0; t < kl.grad.size(); ++t) g.log_probs[t] += kl.grad[t];
        sums.kl_loss += kl.loss;
        sums.kl_sum += kl.kl_sum;
      }
      for (size_t t = 0; t < entropy.size(); ++t) sums.entropy_sum += mask[t] ? entropy[t] : 0.0;
      if (options.entropy_coeff != 0.0) {
        const AggregateResult bonus = aggregate(rows, entropy, aggregation);
        sums.entropy_loss -= options.entropy_coeff * bonus.value;
        g.entropy = bonus.grad;
        for (double& d : g.entropy) d *= -options.entropy_coeff;
      }
      return g;
    });
    if (stop_requested()) throw StoppedError(fmt::format("stopped by {} between micro-batches", stop_signal_name()));
  }
  return sums;
}

}  // namespace weft
