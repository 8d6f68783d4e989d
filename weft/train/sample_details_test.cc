#include "weft/train/sample_details.h"

#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/comm/launch.h"

namespace weft {
namespace {

Trajectory detailed(size_t i) {
  Trajectory t;
  t.dataset_row = static_cast<int64_t>(i);
  const int64_t response = 1 + static_cast<int64_t>(i % 5);
  t.prompt_ids = {1, 2, static_cast<int32_t>(3 + i)};
  for (int64_t j = 0; j < response; ++j) {
    t.response_ids.push_back(static_cast<int32_t>(7 + j));
    t.rollout_log_probs.push_back(-0.5F * static_cast<float>(j + 1));
    t.response_mask.push_back(1);
    if (i % 3 != 0) t.kept.push_back(KeptSet::from_ids({static_cast<int32_t>(i), static_cast<int32_t>(40 + j)}, 100));
  }
  t.weight_versions = {{0, 0, response}};
  t.finish_reason = "stop";
  RoutingTrace trace(t.num_tokens() - 1, {0, 2}, 2, 16);
  for (int64_t r = 0; r < trace.num_rows(); ++r)
    for (int64_t l = 0; l < 2; ++l) {
      const int32_t first = static_cast<int32_t>((i + static_cast<size_t>(r) * 3 + static_cast<size_t>(l)) % 15);
      const int32_t ids[] = {first, first + 1};
      trace.set(r, l, ids);
    }
  t.routing = std::move(trace);
  return t;
}

ScoredSample without_details(size_t i) {
  ScoredSample s{detailed(i), "", false, false};
  s.trajectory.routing.reset();
  s.trajectory.kept.clear();
  return s;
}

// Random holders, one or more a sample, and random wishes: who asks gets the very details, once; who does not gets nothing.
TEST(SampleDetails, TravelToWhomWantsThem) {
  int64_t moved = 0;
  for (uint64_t seed = 0; seed < 25; ++seed) {
    const CounterRng rng(seed);
    const int ranks = 1 + static_cast<int>(rng.below(0, 8));
    const size_t n = rng.below(1, 30);
    const auto chance = [&](uint64_t what, size_t i, int rank) {
      return rng.below(100 + what * 100'000 + i * 16 + static_cast<uint64_t>(rank), 4) == 0;
    };
    const auto holds = [&](size_t i, int rank) {
      return static_cast<int>(i % static_cast<size_t>(ranks)) == rank || chance(1, i, rank);
    };
    std::atomic<int64_t> received = 0, expected = 0;
    run_ranks(ranks, {}, [&](Communicator& world) {
      const Job job(world);
      std::vector<ScoredSample> samples;
      std::vector<uint8_t> wanted;
      int64_t missing = 0;
      for (size_t i = 0; i < n; ++i) {
        samples.push_back(holds(i, world.rank()) ? ScoredSample{detailed(i), "", true, false} : without_details(i));
        wanted.push_back(chance(2, i, world.rank()) || (seed % 5 == 0));
        if (!wanted.back() || holds(i, world.rank())) continue;
        ++missing;
        const Trajectory one = detailed(i);
        expected += std::ssize(serialize_trajectories({&one, 1}));
      }
      const auto before = job.received_bytes();
      fetch_details(job, samples, wanted);
      for (const auto& [name, bytes] : job.received_bytes())
        received += static_cast<int64_t>(bytes - (before.count(name) ? before.at(name) : 0));
      for (size_t i = 0; i < n; ++i) {
        const bool here = holds(i, world.rank()) || wanted[i];
        EXPECT_EQ(samples[i].has_details, here);
        EXPECT_EQ(samples[i].trajectory, here ? detailed(i) : without_details(i).trajectory);
      }
      moved += missing;
    });
    // Each once: but for frames of parcels and a byte a sample and rank that says who has what.
    EXPECT_LE(received, expected + ranks * ranks * static_cast<int64_t>(n + 64)) << seed;
  }
  EXPECT_GT(moved, 200);
}

// Routes that a rank has already (the actor's own, R2) are not replaced by the rollout's.
TEST(SampleDetails, RoutesOfTheReceiverStay) {
  run_ranks(2, {}, [&](Communicator& world) {
    std::vector<ScoredSample> samples;
    samples.push_back(world.rank() == 0 ? ScoredSample{detailed(4), "", true, true} : without_details(4));
    if (world.rank() == 1) samples[0].trajectory.routing = detailed(9).routing;  // of as many tokens
    fetch_details(Job(world), samples, {1});
    EXPECT_EQ(samples[0].trajectory.kept, detailed(4).kept);
    EXPECT_EQ(samples[0].trajectory.routing, detailed(world.rank() == 0 ? 4 : 9).routing);
  });
}

TEST(SampleDetails, WhatNobodyHasIsAnError) {
  EXPECT_THROW(run_ranks(2, {},
                         [&](Communicator& world) {
                           std::vector<ScoredSample> samples;
                           samples.push_back(without_details(0));
                           fetch_details(Job(world), samples, {1});
                         }),
               std::exception);
}

}  // namespace
}  // namespace weft
