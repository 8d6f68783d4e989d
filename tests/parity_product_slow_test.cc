// The whole product of what may differ between rollout and trainer, by transitivity. For each model, precision, temperature and
// kept set: (1) every rollout (order, companions, chunk, samples of a prompt, threads, target) gives the requests it shares with
// the base rollout the same tokens, log-probs and routes; (2) every way to train on the base rollout (packing, recompute,
// threads, target, replay) computes its log-probs. So any rollout of (1) agrees with any trainer of (2). About 7,000 comparisons:
// `make test-all`.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "tests/parity_mix.h"

namespace weft {
namespace {

using Key = std::pair<int64_t, int64_t>;  // dataset row, sample

std::map<Key, Trajectory> by_key(std::vector<Trajectory> trajectories) {
  std::map<Key, Trajectory> out;
  for (Trajectory& t : trajectories) out[{t.dataset_row, t.sample_index}] = std::move(t);
  return out;
}

struct Counts {
  int64_t rollouts = 0, trainers = 0, shared_samples = 0, tokens = 0;
};

void check_rollouts(const Mix& group, const std::vector<Trajectory>& base, Counts& counts) {
  const std::map<Key, Trajectory> expected = by_key(base);
  for (const kernels::Target target : kernels::available_targets()) {
    kernels::force_target(target);
    auto model = small_model(group.model, group.bf16);
    for (const bool reversed : {false, true})
      for (const int64_t companions : {1, 5})
        for (const int64_t chunk : {7, 33, 300})
          for (const int64_t n : {1, 3})
            for (const int threads : {1, 2, 4}) {
              Mix mix = group;
              mix.target = target, mix.reversed = reversed, mix.companions = companions, mix.chunk = chunk, mix.n = n;
              mix.rollout_threads = threads, mix.block = chunk == 33 ? 16 : 64;
              ++counts.rollouts;
              for (const auto& [key, sample] : by_key(rollout(*model, mix))) {
                ASSERT_TRUE(expected.contains(key)) << mix.text();
                ASSERT_TRUE(sample == expected.at(key)) << mix.text() << ": row " << key.first << " sample " << key.second;
                ++counts.shared_samples;
              }
            }
  }
}

void check_trainers(const Mix& group, const std::vector<Trajectory>& base, Counts& counts) {
  for (const kernels::Target target : kernels::available_targets()) {
    kernels::force_target(target);
    auto model = small_model(group.model, group.bf16);
    const bool moe = model->config().has_moe();
    for (const RouterReplayMode replay : {RouterReplayMode::kDisabled, RouterReplayMode::kR2, RouterReplayMode::kR3})
      for (const bool one_by_one : {false, true})
        for (const bool recompute : {false, true})
          for (const int threads : {1, 2, 4}) {
            Mix mix = group;
            mix.target = target, mix.replay = replay, mix.one_by_one = one_by_one, mix.recompute = recompute,
            mix.threads = threads;
            const ParityResult r = train_and_compare(*model, base, mix);
            ++counts.trainers;
            counts.tokens += r.tokens;
            ASSERT_TRUE(r.exact()) << mix.text() << ": " << r.unequal_tokens << " of " << r.tokens << " log-probs, "
                                   << r.unequal_rows << " of " << r.rows << " routes; " << r.first;
            ASSERT_EQ(r.max_difference, 0.0) << mix.text();
            ASSERT_GT(r.tokens, 100) << mix.text();
            ASSERT_EQ(r.rows > 0, moe) << mix.text();
          }
  }
}

class ParityProduct : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(ParityProduct, EveryRolloutEqualsEveryTrainer) {
  Counts counts;
  for (const double temperature : {1.0, 0.6})
    for (const bool filtered : {false, true}) {
      Mix group;
      group.model = std::get<0>(GetParam()), group.bf16 = std::get<1>(GetParam()), group.temperature = temperature;
      group.target = kernels::available_targets().back();
      group.companions = 5, group.n = 3;
      if (filtered) group.top_p = 0.9, group.top_k = 20, group.min_p = 0.02;
      kernels::force_target(group.target);
      const std::vector<Trajectory> base = rollout(*small_model(group.model, group.bf16), group);
      check_rollouts(group, base, counts);
      if (HasFatalFailure()) return;
      check_trainers(group, base, counts);
      if (HasFatalFailure()) return;
    }
  fmt::print("{} rollouts ({} samples) and {} trainers ({} log-probs): all bits equal\n", counts.rollouts, counts.shared_samples,
             counts.trainers, counts.tokens);
  std::fflush(stdout);
  kernels::force_target(kernels::available_targets().back());
}

INSTANTIATE_TEST_SUITE_P(Models, ParityProduct, testing::Combine(testing::Values(0, 1, 2, 3), testing::Bool()), [](const auto& p) {
  const std::vector<std::string> models({"MoE", "dense", "Mixtral", "over_encoded"});
  return models[static_cast<size_t>(std::get<0>(p.param))] + (std::get<1>(p.param) ? "_bf16" : "_fp32");
});

}  // namespace
}  // namespace weft
