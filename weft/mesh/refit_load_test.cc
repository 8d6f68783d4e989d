// refit_load against the planner whose transfers it does not list.
#include <gtest/gtest.h>

#include <numeric>

#include "weft/mesh/parallel_dims.h"
#include "weft/mesh/refit_plan.h"
#include "weft/mesh/sharding_plan.h"

namespace weft {
namespace {

std::vector<int> numbered(int64_t n, int64_t first) {
  std::vector<int> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), static_cast<int>(first));
  return out;
}

TEST(RefitLoad, IsThePlannersWithoutItsTransfers) {
  const ShardingPlan table{cut("experts", "ep", 0), cut("columns", "tp", 0, Shares::kContraction), replicated("norm", "tp")};
  struct Kind {
    const char* name;
    std::vector<int64_t> shape;
    int64_t count;
  };
  const std::vector<Kind> kinds{{"experts", {8, 12, 32}, 3}, {"columns", {64, 32}, 4}, {"norm", {33}, 5}};
  const std::pair<const char*, const char*> meshes[] = {{"fsdp=8,ep=4", "dp=2,tp=2,ep=4"},
                                                        {"replicate=2,fsdp=2,tp=2", "dp=4"},
                                                        {"fsdp=3,ep=3", "dp=1,tp=4"},
                                                        {"replicate=4", "dp=8,ep=4"},
                                                        {"fsdp=4", "dp=4"},
                                                        {"fsdp=1", "dp=1"}};
  for (const auto& [train_text, rollout_text] : meshes)
    for (const bool apart : {false, true}) {
      SCOPED_TRACE(std::string(train_text) + " -> " + rollout_text + (apart ? " apart" : ""));
      const ParallelDims train = parse_parallel_dims(train_text), rollout = parse_rollout_dims(rollout_text);
      std::vector<RefitTensor> once, all;
      std::vector<int64_t> counts;
      for (const Kind& k : kinds) {
        RefitTensor t{k.name, k.shape, DType::kBF16, {}, {}};
        t.from = holder_sets_of(place_parameter(table, train, k.name, k.shape).layout, numbered(train.world(), 0));
        t.to = holder_sets_of(place_parameter(table, rollout, k.name, k.shape).computed,
                              numbered(rollout.world(), apart ? train.world() : 0));
        once.push_back(t);
        counts.push_back(k.count);
        for (int64_t i = 0; i < k.count; ++i) all.push_back(t);
      }
      const RefitPlan plan = plan_refit(all);
      std::map<std::pair<int64_t, int64_t>, double> flows;
      const RefitLoad load = refit_load(once, counts, [&](int64_t from, int64_t to, double bytes) {
        flows[{from, to}] += bytes;
      });
      EXPECT_EQ(load.received, plan.received);
      EXPECT_EQ(load.largest_box, plan.largest_box);
      std::map<int64_t, int64_t> sent = load.sent;
      for (const auto& [rank, bytes] : plan.sent) sent[rank];
      for (const auto& [rank, bytes] : sent) {
        const auto at = plan.sent.find(rank);
        EXPECT_LE(std::abs(bytes - (at == plan.sent.end() ? 0 : at->second)), load.largest_box) << "rank " << rank;
      }
      std::map<int64_t, double> arrived;
      for (const auto& [pair, bytes] : flows) {
        EXPECT_NE(pair.first, pair.second);
        arrived[pair.second] += bytes;
      }
      for (const auto& [rank, bytes] : load.received) EXPECT_NEAR(arrived[rank], static_cast<double>(bytes), 1e-6);
      for (const auto& [rank, bytes] : load.needed) EXPECT_GE(bytes, plan.received.count(rank) ? plan.received.at(rank) : 0);
    }
}

}  // namespace
}  // namespace weft
