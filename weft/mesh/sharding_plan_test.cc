#include "weft/mesh/sharding_plan.h"

#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/mesh/test_support.h"

namespace weft {
namespace {

using Shape = std::vector<int64_t>;

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "none";
}

TEST(ShardingPlan, Patterns) {
  EXPECT_TRUE(matches("model.layers.*.mlp.experts.*", "model.layers.3.mlp.experts.down_proj"));
  EXPECT_TRUE(matches("*norm.weight", "model.norm.weight"));
  EXPECT_TRUE(matches("*a*b", "xaxaxbxb"));
  EXPECT_TRUE(matches("**", ""));
  EXPECT_FALSE(matches("*a*b", "xaxaxbxc"));
  EXPECT_FALSE(matches("norm.weight", "model.norm.weight"));
  EXPECT_FALSE(matches("", "x"));
}

// [128, H, I] -ep=4-> [32, H, I] -fsdp-> [32, H/f, I]
TEST(ShardingPlan, ExpertsByEpThenFsdp) {
  const ShardingPlan plan{cut("*.experts.down_proj", "ep", 0)};
  const ParallelDims dims = parse_parallel_dims("fsdp=8,ep=4");
  const Placement p = place_parameter(plan, dims, "mlp.experts.down_proj", {128, 64, 48});
  EXPECT_EQ(p.fsdp_axis, "efsdp");
  for (int64_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(p.computed.local_shape(rank), (Shape{32, 64, 48}));
    EXPECT_EQ(p.layout.local_shape(rank), (Shape{32, 32, 48}));
    // ep is the faster axis: rank r holds the experts of r mod 4 and the half of r / 4.
    EXPECT_EQ(p.layout.boxes(rank).at(0).box.offset, (Shape{32 * (rank % 4), 32 * (rank / 4), 0}));
  }
  EXPECT_TRUE(p.partial_axes.empty());
  // 3 experts on 4 ranks: the last has none, and keeps its other dims.
  EXPECT_EQ(place_parameter(plan, dims, "mlp.experts.down_proj", {3, 64, 48}).computed.local_shape(3), (Shape{0, 64, 48}));
  // Without ep experts are sharded over all ranks of a replica, those of tp included.
  EXPECT_EQ(
      place_parameter(plan, parse_parallel_dims("fsdp=2,tp=2"), "mlp.experts.down_proj", {128, 64, 48}).layout.local_shape(3),
      (Shape{32, 64, 48}));
}

TEST(ShardingPlan, TpCutsAtLeavesAndHeads) {
  const ShardingPlan plan{cut("q", "tp", 0, Shares::kContraction, 8), cut("o", "tp", 1, Shares::kContraction, 8),
                          cut("k", "tp", 0, Shares::kHeads, 2),       cut("up", "tp", 0, Shares::kContraction),
                          cut("embed", "tp", 0, Shares::kVocabulary), replicated("norm", "tp"),
                          replicated_partial("q_norm", "tp")};
  const ParallelDims dims = parse_parallel_dims("fsdp=2,tp=4");
  const auto at = [&](const std::string& name, const Shape& shape) { return place_parameter(plan, dims, name, shape); };
  EXPECT_EQ(at("q", {32, 64}).computed.intervals(1, 0), (std::vector<Interval>{{8, 16}}));
  EXPECT_EQ(at("q", {32, 64}).layout.local_shape(1), (Shape{8, 32}));
  EXPECT_EQ(at("o", {64, 32}).computed.intervals(2, 1), (std::vector<Interval>{{16, 24}}));
  // 50 = leaves of 6 6 6 6 6 6 6 8: not ceil chunks of 13.
  EXPECT_EQ(at("up", {50, 64}).computed.intervals(1, 0), (std::vector<Interval>{{12, 24}}));
  EXPECT_EQ(at("embed", {97, 64}).computed.intervals(3, 0), (std::vector<Interval>{{80, 97}}));
  // Two heads on four ranks: neighbours share one, and their gradients are terms.
  const Placement k = at("k", {8, 64});
  EXPECT_EQ(k.computed.intervals(0, 0), (std::vector<Interval>{{0, 4}}));
  EXPECT_EQ(k.computed.intervals(1, 0), (std::vector<Interval>{{0, 4}}));
  EXPECT_EQ(k.computed.intervals(2, 0), (std::vector<Interval>{{4, 8}}));
  EXPECT_EQ(k.partial_axes, std::vector<std::string>{"tp_copies"});
  EXPECT_TRUE(at("norm", {64}).partial_axes.empty());
  EXPECT_EQ(at("q_norm", {8}).partial_axes, std::vector<std::string>{"tp"});
  // A bias that tp cuts has no dim left: copies on fsdp.
  EXPECT_EQ(at("q", {32}).layout.local_shape(5), Shape{8});
}

TEST(ShardingPlan, OwnAxes) {
  const ShardingPlan plan{cut("tables.*", "oe", 0), replicated("*", "tp")};
  const ParallelDims dims = parse_parallel_dims("fsdp=2,tp=2,oe=2", 0, {"oe"});
  const Placement p = place_parameter(plan, dims, "tables.0", {11, 8});
  EXPECT_EQ(p.fsdp_axis, "oe_fsdp");
  EXPECT_EQ(p.computed.local_shape(1), (Shape{5, 8}));
  EXPECT_EQ(p.layout.local_shape(1), (Shape{5, 4}));
  EXPECT_EQ(place_parameter(plan, dims, "other", {8, 8}).fsdp_axis, "fsdp");
}

// Whatever the plan, the ranks of a replica keep every element, and what a rank computes with is what its fsdp axis keeps.
TEST(ShardingPlan, KeepsEveryElementOnce) {
  for (const char* mesh : {"fsdp=2,tp=2,ep=4", "replicate=2,fsdp=2,tp=2,ep=2", "cp=2,tp=4", "fsdp=3,tp=2,ep=6", "tp=8,ep=8"}) {
    const ParallelDims dims = parse_parallel_dims(mesh);
    const ShardingPlan plan{cut("q", "tp", 0, Shares::kContraction, 8), cut("o", "tp", 1, Shares::kContraction),
                            cut("k", "tp", 0, Shares::kHeads, 2), cut("e", "ep", 0)};
    for (const auto& [name, shape] :
         std::vector<std::pair<std::string, Shape>>{{"q", {32, 5}}, {"o", {7, 50}}, {"k", {8, 3}}, {"e", {5, 6, 7}}}) {
      const Placement p = place_parameter(plan, dims, name, shape);
      for (int64_t rank = 0; rank < dims.world(); ++rank) {
        int64_t kept = 0;
        const bool copies = p.layout.cuts().size() == p.computed.cuts().size();
        for (int64_t peer : p.layout.mesh().group(rank, p.fsdp_axis)) kept += p.layout.numel(peer);
        EXPECT_EQ(kept, p.computed.numel(rank) * (copies ? p.layout.mesh().size(p.fsdp_axis) : 1)) << mesh << " " << name;
      }
      // One who has nothing finds all of it.
      const Layout elsewhere = Layout::from_boxes(shape, {{100, {{Shape(shape.size(), 0), shape}}}});
      int64_t received = 0;
      for (const Transfer& t : plan_copy(p.layout, elsewhere)) received += t.box.numel();
      EXPECT_EQ(received, elsewhere.numel(100));
    }
  }
}

TEST(ShardingPlan, Refusals) {
  const ShardingPlan plan{cut("q", "tp", 0, Shares::kContraction, 6), cut("k", "tp", 0, Shares::kHeads, 3), cut("e", "ep", 0),
                          cut("v", "tp", 2)};
  const auto place = [&](const char* mesh, const char* name, const Shape& shape) {
    return refusal([&] { (void)place_parameter(plan, parse_parallel_dims(mesh), name, shape); });
  };
  EXPECT_EQ(place("tp=4", "q", {24, 8}), "tp=4: q has 6 heads, which cannot be shared out whole; tp can be 1, 2");
  EXPECT_EQ(place("tp=3", "q", {24, 8}), "tp=3: q is summed in eighths; tp can be 1, 2, 4 or 8");
  EXPECT_EQ(place("tp=2", "k", {12, 8}),
            "tp=2: k has 3 key/value heads, which 2 ranks cannot share in equal parts or copies; tp can be 1");
  EXPECT_EQ(place("tp=2", "v", {12, 8}), "tp=2: v has no dim 2");
  EXPECT_EQ(place("tp=2", "x", {12, 8}), "the plan says nothing about x on tp: add an entry; there are k, q, v");
  EXPECT_EQ(place("fsdp=2,ep=2", "x", {12, 8}), "none");
  const std::vector<std::string> names{"q", "k", "v"};
  EXPECT_EQ(refusal([&] { check_plan(plan, parse_parallel_dims("tp=2"), names); }),
            "the plan's entry e (ep) matches no parameter; the first of 3 is q");
  EXPECT_EQ(refusal([&] { check_plan({cut("q", "pp", 0)}, parse_parallel_dims("tp=2"), names); }),
            "the plan's entry for q names the axis \"pp\": there are fsdp, tp, ep");
}

}  // namespace
}  // namespace weft
