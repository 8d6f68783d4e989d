#pragma once
// All pairs of an actor's and a rollout's mesh within 8 ranks, on the same ranks or apart, and what their plans promise.

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "weft/train/rollout_role.h"
#include "weft/train/test_mesh_oracle.h"

namespace weft::testing {

inline std::vector<int> ranks_from(int first, int64_t n) {
  std::vector<int> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), first);
  return out;
}

inline std::vector<RolePlaces> all_pairs() {
  std::vector<ParallelDims> actors, rollouts;
  for (int64_t world = 1; world <= 8; ++world)
    for (int64_t tp : {1, 2, 4, 8})
      for (int64_t rest = 1; rest * tp <= world; ++rest) {
        if (rest * tp != world) continue;
        for (int64_t ep = 1; ep <= world; ++ep)
          if (world % ep == 0) rollouts.push_back(parse_rollout_dims(fmt::format("dp={},tp={},ep={}", rest, tp, ep), 0, {"oe"}));
        for (int64_t replicate = 1; replicate <= rest; ++replicate)
          for (int64_t cp = 1; replicate * cp <= rest; ++cp) {
            if (rest % (replicate * cp) != 0) continue;
            const int64_t fsdp = rest / replicate / cp, n = fsdp * cp * tp;
            for (int64_t ep = 1; ep <= n; ++ep)
              if (n % ep == 0)
                actors.push_back(parse_parallel_dims(
                    fmt::format("replicate={},fsdp={},cp={},tp={},ep={}", replicate, fsdp, cp, tp, ep), 0, {"oe"}));
          }
      }
  std::vector<RolePlaces> out;
  for (const ParallelDims& a : actors)
    for (const ParallelDims& r : rollouts) {
      RolePlaces p;
      p.actor = {a, ranks_from(0, a.world())};
      if (a.world() == r.world()) {
        p.world = static_cast<int>(a.world());
        p.rollout = {r, p.actor.ranks};
        out.push_back(p);
      }
      if (a.world() + r.world() <= 8) {  // apart; the rollout's ranks first in half of the cases
        p.world = static_cast<int>(a.world() + r.world());
        const bool first = out.size() % 2 == 0;
        p.actor.ranks = ranks_from(first ? static_cast<int>(r.world()) : 0, a.world());
        p.rollout = {r, ranks_from(first ? 0 : static_cast<int>(a.world()), r.world())};
        out.push_back(p);
      }
    }
  for (RolePlaces& p : out) p.reference = p.critic = p.reward_model = p.actor;
  return out;
}

inline std::string text_of(const RolePlaces& p) {
  return fmt::format("{} on {} -> {} on {}", p.actor.dims.to_string(), fmt::join(p.actor.ranks, ","),
                     rollout_text(p.rollout.dims), fmt::join(p.rollout.ranks, ","));
}

// Max-flow min-cut by all sets of senders: what a set has to send by itself, shared evenly.
inline double fractional_optimum(const std::vector<RefitTensor>& tensors) {
  std::map<uint64_t, int64_t> demand;
  for (const RefitTensor& t : tensors)
    for_each_meeting(t.from, t.to, std::ssize(t.shape), [&](const Meeting& m) {
      uint64_t holders = 0;
      for (int64_t r : m.have->ranks) holders |= uint64_t{1} << r;
      int64_t lacking = 0;
      for (int64_t r : m.need->ranks) lacking += !(holders >> r & 1);
      demand[holders] += lacking * m.box.numel() * dtype_bytes(t.dtype);
    });
  double most = 0;
  for (uint64_t set = 1; set < 256; ++set) {
    int64_t inside = 0;
    for (const auto& [holders, bytes] : demand)
      if ((holders & ~set) == 0) inside += bytes;
    most = std::max(most, static_cast<double>(inside) / std::popcount(set));
  }
  return most;
}

inline ModelConfig config_of(const std::string& kind) {
  return configure_model(HfConfig::parse(oracle_model(kind), "config.json"));
}

// Every `step`-th pair: each rank receives what it needs and lacks, and the largest sender is within one largest box of the least
// possible.
inline void expect_exact_and_even(size_t step) {
  const std::vector<RolePlaces> pairs = all_pairs();
  ASSERT_EQ(pairs.size(), 2519u);
  const ModelConfig config = config_of("moe");
  int64_t moved = 0, nothing = 0;
  for (size_t i = 0; i < pairs.size(); i += step) {
    const RolePlaces& p = pairs[i];
    const std::vector<RefitTensor> tensors = refit_tensors(config, at::kBFloat16, p, false, {});
    const RefitPlan plan = plan_refit(tensors);
    std::map<int64_t, int64_t> needed;
    for (const RefitTensor& t : tensors)
      for (int64_t r = 0; r < p.world; ++r)
        if (const int64_t bytes = missing_bytes(t, r); bytes > 0) needed[r] += bytes;
    ASSERT_EQ(plan.received, needed) << text_of(p);
    int64_t most = 0;
    for (const auto& [rank, bytes] : plan.sent) most = std::max(most, bytes);
    ASSERT_LE(static_cast<double>(most), fractional_optimum(tensors) + static_cast<double>(plan.largest_box)) << text_of(p);
    (needed.empty() ? nothing : moved) += 1;
  }
  EXPECT_GT(moved, 2000 / static_cast<int64_t>(step));
  EXPECT_GT(nothing, 0);  // a rank has all it needs: replicate = dp
}

}  // namespace weft::testing
