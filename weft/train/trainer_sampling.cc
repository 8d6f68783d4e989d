// What a step trains on: prompts, samples, rewards; dynamic sampling and greedy baselines.
#include <cmath>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/random.h"
#include "weft/rl/dapo.h"
#include "weft/train/step_data.h"
#include "weft/train/trainer.h"

namespace weft {
namespace {

// However many batches the recipe allows: after so many without one group there will be none.
constexpr int64_t kBatchesWithoutAGroup = 100;

// What must differ within a group, by sample; NaN: this sample has none.
std::vector<double> filter_metric(const std::vector<ScoredSample>& samples, const std::string& metric) {
  std::vector<double> out;
  for (const ScoredSample& s : samples) {
    const Trajectory& t = s.trajectory;
    const auto it = t.rewards.find(metric);
    out.push_back(metric == "reward" ? (t.reward_valid ? t.reward : NAN) : it != t.rewards.end() ? it->second : NAN);
  }
  return out;
}

}  // namespace

// Of the ranks that answer.
int64_t Trainer::tokens_generated() const {
  const RolloutShare share = rollout_->share();
  return share.engine && share.answers ? share.engine->tokens_generated() : 0;
}

void Trainer::generate_step(StepData& data) {
  const uint64_t seed = hash_combine(static_cast<uint64_t>(recipe_.rollout.seed), static_cast<uint64_t>(data.step));
  const int64_t before = tokens_generated(), wanted = recipe_.data.train_batch_size;
  const size_t n = static_cast<size_t>(recipe_.rollout.n);
  const FilterGroupsRecipe& filter = recipe_.algorithm.filter_groups;
  DynamicSampling sampling(wanted, filter.max_num_gen_batches);
  for (auto next = DynamicSampling::Next::kGenerate; next == DynamicSampling::Next::kGenerate; ++data.batches) {
    std::vector<Prompt> prompts;
    for (int64_t i : sampler_->next_batch(wanted)) prompts.push_back(train_->prompt(train_->rows()[static_cast<size_t>(i)]));
    // A small data set may give a prompt twice in a step: its next group is another one.
    const uint64_t batch_seed = data.batches == 0 ? seed : hash_combine(seed, static_cast<uint64_t>(data.batches));
    enter(Phase::kGenerate);
    std::vector<ScoredSample> samples =
        generate_scored(rollout_->share(), job_, *rewards_, *train_, *tokenizer_, prompts, training_params(recipe_), batch_seed,
                        [&](int64_t done, int64_t total) {
                          note(data.batches == 0 ? fmt::format("step {}: {}/{} samples", data.step, done, total)
                                                 : fmt::format("step {}: batch {}: {}/{} samples, {}/{} groups", data.step,
                                                               data.batches + 1, done, total, data.prompts.size(), wanted));
                        });
    add_model_rewards(samples);
    std::vector<uint8_t> kept(samples.size(), 1);
    if (filter.enable) {
      std::vector<int64_t> groups;
      for (size_t i = 0; i < samples.size(); ++i) groups.push_back(static_cast<int64_t>(i / n));
      kept = keep_informative_groups(filter_metric(samples, filter.metric), groups);
    }
    int64_t groups = 0;
    for (size_t p = 0; p < prompts.size(); ++p) {
      if (!kept[p * n]) continue;
      ++groups;
      if (static_cast<int64_t>(data.prompts.size()) == wanted) continue;
      data.prompts.push_back(std::move(prompts[p]));
      for (size_t i = p * n; i < (p + 1) * n; ++i) data.samples.push_back(std::move(samples[i]));
    }
    next = sampling.add(groups, static_cast<int64_t>(prompts.size()));
    if (data.prompts.empty() && data.batches + 1 == kBatchesWithoutAGroup) next = DynamicSampling::Next::kBoundReached;
    if (job_.main() && next == DynamicSampling::Next::kGenerate && (data.batches + 1) % 10 == 0)
      log_warn(
          "step {}: {} batches of {} prompts gave {} of {} groups that differ in \"{}\" "
          "(algorithm.filter_groups.max_num_gen_batches = {})",
          data.step, data.batches + 1, wanted, data.prompts.size(), wanted, filter.metric, filter.max_num_gen_batches);
  }
  if (data.prompts.empty()) {
    save(nullptr);
    throw ValueError(
        fmt::format("no group of step {} has responses that differ in \"{}\", in {} batches of {} prompts "
                    "(algorithm.filter_groups): other data, a higher rollout.temperature or a larger rollout.n would help. "
                    "What came before is saved in {}",
                    data.step, filter.metric, data.batches, wanted, checkpoints()));
  }
  data.carried.set("rollout/tokens", job_.sum(static_cast<double>(tokens_generated() - before)));
  if (filter.enable) {
    data.carried.set("filter_groups/batches", static_cast<double>(data.batches));
    data.carried.set("filter_groups/kept_share",
                     static_cast<double>(sampling.kept()) / static_cast<double>(sampling.generated()));
  }
  if (recipe_.algorithm.adv_estimator == "remax") add_baselines(data, seed);
  data.index();
}

void Trainer::add_model_rewards(std::vector<ScoredSample>& samples) {
  if (recipe_.reward_model.path.empty()) return;
  enter(Phase::kReward);
  std::vector<const Trajectory*> trajectories;
  for (const ScoredSample& s : samples) trajectories.push_back(&s.trajectory);
  std::vector<std::vector<float>> scores(1);
  job_.phase(reward_model_ != nullptr, [&] { scores[0] = reward_model_->scores(trajectories); });
  // The ranks of a role that has all ranks have all scores.
  if (std::ssize(roles_.places.reward_model.ranks) != job_.size()) job_.broadcast(scores, roles_.places.reward_model.ranks[0]);
  for (size_t i = 0; i < samples.size(); ++i) {
    Trajectory& t = samples[i].trajectory;
    const double score = scores[0][i];
    t.rewards[kModelReward] = score;
    if (!std::isfinite(score)) {  // as a reward function's
      if (recipe_.reward.on_nan != "drop")
        throw ValueError(
            fmt::format("reward_model.path = \"{}\" scores {} as {}: reward.on_nan = \"drop\" would leave such rows out",
                        recipe_.reward_model.path, t.name(), score));
      t.reward_valid = false;
      continue;
    }
    if (rewards_->size() == 0) t.reward = 0, t.reward_valid = true;
    t.reward += recipe_.reward_model.weight * score;
  }
}

void Trainer::add_baselines(StepData& data, uint64_t seed) {
  SamplingParams greedy = training_params(recipe_);
  greedy.n = 1;
  greedy.temperature = 0;
  enter(Phase::kGenerate);
  std::vector<ScoredSample> samples = generate_scored(
      rollout_->share(), job_, *rewards_, *train_, *tokenizer_, data.prompts, greedy, seed,
      [&](int64_t done, int64_t total) { note(fmt::format("step {}: {}/{} greedy responses", data.step, done, total)); });
  add_model_rewards(samples);
  double sum = 0, count = 0;
  for (const ScoredSample& s : samples) {
    data.baselines.push_back(s.trajectory.reward_valid ? s.trajectory.reward : NAN);
    if (s.trajectory.reward_valid) sum += s.trajectory.reward, count += 1;
  }
  data.carried.set("reward/greedy_baseline", count > 0 ? sum / count : 0.0);
}

}  // namespace weft
