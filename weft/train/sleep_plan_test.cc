#include "weft/train/sleep_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft {
namespace {

using P = Phase;

// As a colocated job of one process has them [MB].
std::vector<MemoryNeed> colocated() {
  const auto mb = [](int64_t n) { return std::vector<int64_t>{n * 1'000'000}; };
  return {{"actor.weights", mb(100), {P::kActorForward, P::kUpdate, P::kRefit, P::kSave}, false},
          {"actor.gradients", mb(100), {P::kUpdate}, true},
          {"actor.optimizer", mb(200), {P::kUpdate, P::kSave}, false},
          {"rollout.weights", mb(90), {P::kGenerate, P::kRefit}, true},
          {"rollout.kv_cache", mb(150), {P::kGenerate}, true}};
}
const std::vector<Phase> kColocated = {P::kGenerate, P::kActorForward, P::kUpdate, P::kRefit, P::kSave};

std::vector<std::string> asleep(const SleepPlan& plan, const std::vector<MemoryNeed>& kinds, Phase phase) {
  std::vector<std::string> out;
  for (size_t i = 0; i < kinds.size(); ++i)
    if (plan.asleep.at(phase)[i]) out.push_back(kinds[i].name);
  return out;
}

using Names = std::vector<std::string>;

TEST(SleepPlan, NothingSleepsWithoutNeed) {
  for (int64_t limit : {int64_t{0}, int64_t{640'000'000}}) {
    const SleepPlan plan = plan_sleep(colocated(), kColocated, limit);
    EXPECT_FALSE(plan.sleeps());
    for (Phase p : kColocated) EXPECT_EQ(plan.peak.at(p), 640'000'000);
  }
}

TEST(SleepPlan, WhatNeedNotBeKeptSleepsFirst) {
  const std::vector<MemoryNeed> kinds = colocated();
  const SleepPlan a = plan_sleep(kinds, kColocated, 600'000'000);
  EXPECT_EQ(asleep(a, kinds, P::kGenerate), Names{"actor.gradients"});
  EXPECT_EQ(asleep(a, kinds, P::kUpdate), Names{"rollout.kv_cache"});
  // The order of design: the cache asleep and rollout weights given up while the actor trains; gradients and optimizer asleep at
  // the refit; the actor's weights asleep while the rollout generates.
  const SleepPlan b = plan_sleep(kinds, kColocated, 400'000'000);
  EXPECT_EQ(asleep(b, kinds, P::kGenerate), (Names{"actor.gradients", "actor.optimizer"}));
  EXPECT_EQ(asleep(b, kinds, P::kUpdate), (Names{"rollout.weights", "rollout.kv_cache"}));
  EXPECT_EQ(asleep(b, kinds, P::kRefit), (Names{"actor.gradients", "rollout.kv_cache"}));
  EXPECT_EQ(b.peak.at(P::kUpdate), 400'000'000);
  std::vector<MemoryNeed> small = kinds;
  small[2].bytes[0] = 20'000'000;
  const SleepPlan c = plan_sleep(small, kColocated, 265'000'000);
  EXPECT_EQ(asleep(c, small, P::kGenerate), (Names{"actor.weights", "actor.gradients"}));
}

TEST(SleepPlan, WhatDoesNotFitIsListed) {
  try {
    (void)plan_sleep(colocated(), kColocated, 399'000'000);
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_STREQ(e.what(),
                 "memory.limit = 399 MB: the phase update_actor needs 400.0 MB in one process (actor.weights 100.0, "
                 "actor.gradients 100.0, actor.optimizer 200.0), more than any other. Raise it or use more processes");
  }
}

// Random kinds on several processes.
TEST(SleepPlan, HoldsTheLimitInEveryPhase) {
  int64_t refused = 0, slept = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const CounterRng rng(seed);
    uint64_t at = 0;
    const auto below = [&](uint64_t n) { return static_cast<int64_t>(rng.below(at++, n)); };
    std::vector<MemoryNeed> kinds;
    const int64_t processes = 1 + below(4);
    for (int64_t i = 1 + below(7); i > 0; --i) {
      MemoryNeed k;
      k.name = fmt::format("k{}", i);
      for (int64_t p = 0; p < processes; ++p) k.bytes.push_back(below(3) == 0 ? 0 : below(100));
      for (Phase p : kPhases)
        if (below(3) == 0) k.phases.insert(p);
      k.discard = below(2) == 0;
      kinds.push_back(k);
    }
    const int64_t limit = 1 + below(300);
    const auto sum = [&](int64_t process, const auto& counts) {
      int64_t n = 0;
      for (size_t i = 0; i < kinds.size(); ++i) n += counts(i) ? kinds[i].bytes[static_cast<size_t>(process)] : 0;
      return n;
    };
    bool fits = true;
    for (Phase phase : kPhases)
      for (int64_t p = 0; p < processes; ++p)
        fits = fits && sum(p, [&](size_t i) { return kinds[i].phases.contains(phase); }) <= limit;
    if (!fits) {
      EXPECT_THROW((void)plan_sleep(kinds, kPhases, limit), UsageError) << seed;
      ++refused;
      continue;
    }
    const SleepPlan plan = plan_sleep(kinds, kPhases, limit);
    slept += plan.sleeps();
    for (Phase phase : kPhases) {
      const std::vector<bool>& asleep_now = plan.asleep.at(phase);
      int64_t most = 0;
      for (int64_t p = 0; p < processes; ++p) most = std::max(most, sum(p, [&](size_t i) { return !asleep_now[i]; }));
      EXPECT_LE(most, limit);
      EXPECT_EQ(plan.peak.at(phase), most);
      bool kept_sleeps = false, dropped_awake = false;
      for (size_t i = 0; i < kinds.size(); ++i) {
        EXPECT_FALSE(asleep_now[i] && kinds[i].phases.contains(phase));
        kept_sleeps = kept_sleeps || (asleep_now[i] && !kinds[i].discard);
        dropped_awake = dropped_awake || (!asleep_now[i] && kinds[i].discard && !kinds[i].phases.contains(phase) &&
                                          *std::max_element(kinds[i].bytes.begin(), kinds[i].bytes.end()) > 0);
      }
      EXPECT_FALSE(kept_sleeps && dropped_awake) << seed;
    }
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(slept, 150);
}

}  // namespace
}  // namespace weft
