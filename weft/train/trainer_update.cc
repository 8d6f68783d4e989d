// What a step computes of its samples: parity, log-probs, updates.
#include <algorithm>
#include <numeric>
#include <span>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/base/signals.h"
#include "weft/base/trace.h"
#include "weft/rl/kl.h"
#include "weft/train/mini_batch.h"
#include "weft/train/step_data.h"
#include "weft/train/trainer.h"
#include "weft/train/update.h"

namespace weft {

std::vector<uint8_t> Trainer::details_wanted(const StepData& data) const {
  std::vector<uint8_t> wanted(data.samples.size(), 0);
  const auto want = [&](const DataParallel& ranks, const std::vector<size_t>& members) {
    std::vector<const Trajectory*> list;
    for (size_t i : members) list.push_back(data.trajectories[i]);
    const DataParallel::Share share = ranks.share(list, recipe_.actor.max_tokens_per_micro_batch);
    for (size_t i = share.begin[share.mine]; i < share.begin[share.mine + 1]; ++i) wanted[members[i]] = 1;
  };
  std::vector<size_t> all(data.samples.size());
  std::iota(all.begin(), all.end(), size_t{0});
  if (actor_) {
    if (recipe_.trainer.parity != "off") want(ranks_, parity_sample(data));
    if (!bypassed()) want(ranks_, all);
    const int64_t prompts = std::ssize(data.prompts), updates = mini_batches(recipe_, prompts) * recipe_.actor.ppo_epochs;
    for (int64_t u = 0; u < updates; ++u) want(ranks_, mini_batch_members(recipe_, data.step, prompts, u));
  }
  // They read no routes, but the sets that tokens were drawn from, where those are not whole.
  const RolloutRecipe& r = recipe_.rollout;
  if ((reference_ || teacher_) && (r.top_p < 1 || r.top_k > 0 || r.min_p > 0)) want(reference_ranks_, all);
  return wanted;
}

// At least one whole trajectory and 1 % of tokens; which ones is drawn from the step.
std::vector<size_t> Trainer::parity_sample(const StepData& data) const {
  int64_t tokens = 0, wanted = 0;
  for (const Trajectory* t : data.trajectories) tokens += static_cast<int64_t>(t->response_ids.size());
  std::vector<size_t> sample;
  const CounterRng rng(hash_combine(static_cast<uint64_t>(recipe_.trainer.seed), static_cast<uint64_t>(data.step)));
  const uint64_t first = rng.below(0, data.trajectories.size());
  for (size_t i = 0; i < data.trajectories.size() && (sample.empty() || wanted * 100 < tokens); ++i) {
    sample.push_back((first + i) % data.trajectories.size());
    wanted += static_cast<int64_t>(data.trajectories[sample.back()]->response_ids.size());
  }
  return sample;
}

bool Trainer::bypassed() const {
  const std::string& mode = recipe_.algorithm.rollout_correction.bypass_mode;
  return mode == "true" || (mode == "auto" && parity_promised());
}

void Trainer::check_step_parity(StepData& data) {
  const TraceSpan span("parity");
  std::vector<const Trajectory*> sample;
  for (size_t i : parity_sample(data)) sample.push_back(data.trajectories[i]);
  const DataParallel::Share share = ranks_.share(sample, recipe_.actor.max_tokens_per_micro_batch);
  ParityResult result = check_parity(*actor_->model, share.micro_batches, actor_options(false));
  result.max_difference = ranks_.max(result.max_difference);
  for (int64_t* count : {&result.tokens, &result.rows, &result.unequal_tokens, &result.unequal_rows})
    *count = static_cast<int64_t>(ranks_.sum_over_places(static_cast<double>(*count)));
  if (!result.exact()) result.first = ranks_.first_text(result.first);  // on all ranks alike
  data.carried.set("parity/max_abs_diff", result.max_difference);
  data.carried.set("parity/unequal_tokens", static_cast<double>(result.unequal_tokens));
  data.carried.set("parity/unequal_routes", static_cast<double>(result.unequal_rows));
  data.carried.set("parity/tokens", static_cast<double>(result.tokens));
  if (!result.exact() && recipe_.trainer.parity == "require")
    throw ValueError(
        fmt::format("trainer and rollout disagree before the first update of step {} ({} of {} log-probs, {} of {} routes): {}. "
                    "This is a bug of weft or of the machine; trainer.parity = \"report\" goes on all the same",
                    data.step, result.unequal_tokens, result.tokens, result.unequal_rows, result.rows, result.first));
}

void Trainer::compute_log_probs(StepData& data) {
  const TraceSpan span("old_log_prob");
  // By the ranks of a role, for all of the actor's.
  const auto forward_all = [&](const DataParallel& ranks, CausalLM& model, const ActorOptions& options,
                               std::vector<std::vector<float>>& out) {
    const DataParallel::Share share = ranks.share(data.trajectories, recipe_.actor.max_tokens_per_micro_batch);
    std::vector<float> mine;
    for (const MicroBatch part : share.micro_batches) {
      const ActorOutput o = actor_forward(model, part, options);
      mine.insert(mine.end(), o.log_probs.begin(), o.log_probs.end());
      if (ranks.any(stop_requested()))
        throw StoppedError(fmt::format("stopped by {} while computing log-probs", stop_signal_name()));
    }
    const std::vector<float> all = ranks.gather_tokens(share, data.trajectories, mine);
    auto at = all.begin();
    for (const Trajectory* t : data.trajectories) {
      const auto n = static_cast<std::ptrdiff_t>(t->response_ids.size());
      out.emplace_back(at, at + n);
      at += n;
    }
    if (options.record) *options.record = ranks.gather_traces(share, data.trajectories, std::move(*options.record));
  };
  const auto frozen = [&](const std::unique_ptr<LoadedModel>& model, std::vector<std::vector<float>>& out) {
    enter(Phase::kReference);
    job_.phase(model != nullptr, [&] { forward_all(reference_ranks_, *model->model, actor_options(false), out); });
    if (roles_.places.reference.ranks != roles_.places.actor.ranks) job_.broadcast(out, roles_.places.reference.ranks[0]);
  };
  // The teacher's are not saved with a step under way: they are computed again, bit for bit.
  if (!recipe_.teacher_path.empty()) frozen(teacher_, data.teacher_log_probs);
  if (recipe_.needs_reference() && !data.has_log_probs) frozen(reference_, data.ref_log_probs);
  if (recipe_.needs_critic()) {
    enter(Phase::kValues);
    job_.phase(critic_ != nullptr, [&] { data.values = critic_->values(data.trajectories); });
    if (roles_.places.critic.ranks != roles_.places.actor.ranks) job_.broadcast(data.values, roles_.places.critic.ranks[0]);
  }
  if (!bypassed()) enter(Phase::kActorForward);
  job_.phase(actor_ != nullptr && !data.has_log_probs, [&] {
    if (bypassed()) {
      for (const Trajectory* t : data.trajectories) data.old_log_probs.push_back(t->rollout_log_probs);
    } else {
      ActorOptions options = actor_options(replay_ == RouterReplayMode::kR3);
      std::vector<RoutingTrace> traces;
      if (replay_ == RouterReplayMode::kR2) options.record = &traces;
      forward_all(ranks_, *actor_->model, options, data.old_log_probs);
      for (size_t i = 0; i < traces.size(); ++i) {
        data.samples[i].trajectory.routing = std::move(traces[i]);
        data.samples[i].counts_here = job_.main();
      }
    }
  });
}

void Trainer::update(StepData& data, MetricsRow& row) {
  const int64_t prompts = std::ssize(data.prompts), minis = mini_batches(recipe_, prompts);
  const PolicyLoss& loss = find_policy_loss(registry_.policy_losses, recipe_.actor.loss_mode);
  PolicyParams params;
  params.clip_ratio_low = recipe_.actor.clip_ratio_low;
  params.clip_ratio_high = recipe_.actor.clip_ratio_high;
  params.clip_ratio_c = recipe_.actor.clip_ratio_c;
  params.tau_pos = recipe_.actor.tau_pos;
  params.tau_neg = recipe_.actor.tau_neg;
  const AggregationMode mode = parse_aggregation_mode(recipe_.actor.loss_agg_mode);
  check_policy_params(recipe_.actor.loss_mode, loss, params, mode);
  const bool replay = replay_ != RouterReplayMode::kDisabled;
  data.trained.assign(data.samples.size(), 0);
  for (int64_t u = 0; u < data.updates_done && job_.main(); ++u)  // before the run was stopped
    for (size_t i : mini_batch_members(recipe_, data.step, prompts, u)) data.trained[i] += 1;
  for (int64_t u = data.updates_done; u < minis * recipe_.actor.ppo_epochs; ++u) {
    const std::vector<size_t> members = mini_batch_members(recipe_, data.step, prompts, u);
    UpdateContext context{
        &data.trajectories, &data.old_log_probs, &data.ref_log_probs, &data.advantages, &data.masks, &data.weights, &members, &data.trained};
    optimizer_->zero_grad();
    UpdateOptions options;
    options.actor = actor_options(replay);
    options.loss = &loss;
    options.params = params;
    options.mode = mode;
    options.max_length = static_cast<double>(recipe_.data.max_response_length);
    options.use_kl_loss = recipe_.actor.use_kl_loss;
    options.kl = {parse_kl_kind(recipe_.actor.kl_loss_type), recipe_.actor.kl_loss_coef, recipe_.actor.kl_loss_unbiased};
    options.off_policy_mask_threshold = recipe_.actor.off_policy_mask_threshold;
    options.entropy_coeff = recipe_.actor.entropy_coeff;
    options.max_tokens_per_micro_batch = recipe_.actor.max_tokens_per_micro_batch;
    UpdateSums sums = accumulate_gradients(*actor_->model, context, options, ranks_);
    sums.check_finite(data.step);
    sums.grad_norm = optimizer_->grad_norm();
    sums.lr = optimizer_->update(sums.grad_norm);
    ++progress_.updates;
    ++progress_.weight_version;
    data.sums.merge(sums);
    data.updates_done = u + 1;
    note(fmt::format("step {}: update {}/{}", data.step, u + 1, minis * recipe_.actor.ppo_epochs));
    if (ranks_.any(stop_requested()) && u + 1 < minis * recipe_.actor.ppo_epochs)
      throw StoppedError(fmt::format("stopped by {} after update {} of step {}", stop_signal_name(), u + 1, data.step));
  }
  data.sums.report(row);
}

void Trainer::update_critic(StepData& data, MetricsRow& row) {
  if (!recipe_.needs_critic()) return;
  enter(Phase::kUpdateCritic);
  const RolePlace &actor = roles_.places.actor, &critic = roles_.places.critic;
  if (critic.ranks != actor.ranks) {
    job_.broadcast(data.returns, actor.ranks[0]);
    job_.broadcast(data.masks, actor.ranks[0]);
  }
  MetricsRow own;
  job_.phase(critic_ != nullptr, [&] { own = critic_->update(data); });
  if (critic.ranks != actor.ranks) {
    std::vector<std::vector<double>> values(1);
    for (const auto& [name, value] : own.entries()) values[0].push_back(value);
    job_.broadcast(values, critic.ranks[0]);
    own = MetricsRow();
    for (size_t i = 0; i < values[0].size(); ++i) own.set(kCriticMetrics[i], values[0][i]);
  }
  for (const auto& [name, value] : own.entries()) row.set(name, value);
}

void Trainer::add_times_trained(StepData& data, MetricsRow& row) const {
  if (data.step <= recipe_.trainer.critic_warmup) return;
  data.trained.resize(data.samples.size(), 0);
  job_.sum(data.trained);
  const auto [least, most] = std::minmax_element(data.trained.begin(), data.trained.end());
  row.set("actor/times_trained/min", *least);
  row.set("actor/times_trained/max", *most);
}

void Trainer::add_refit_metrics(MetricsRow& row) const {
  if (!roles_.world) return;
  const double received = job_.sum(static_cast<double>(refit_report_.received)),
               needed = job_.sum(static_cast<double>(rollout_->needed_bytes()));
  row.set("refit/received_bytes", received);
  row.set("refit/byte_ratio", needed > 0 ? received / needed : 1.0);
  row.set("refit/largest_sender_bytes", job_.max(static_cast<double>(refit_report_.sent)));
  row.set("refit/largest_receiver_bytes", job_.max(static_cast<double>(refit_report_.received)));
  row.set("refit/peak_in_flight_bytes", job_.max(static_cast<double>(refit_report_.peak_in_flight)));
  if (refit_failures_ > 0) row.set("refit/failures", static_cast<double>(refit_failures_));
}

}  // namespace weft
