#include "weft/mesh/refit_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "weft/mesh/test_random_layouts.h"
#include "weft/mesh/test_support.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The largest sender's bytes if boxes could be split at will: the most that any set of ranks has to send by itself, shared
// evenly among them (max-flow min-cut; all sets are tried).
double fractional_optimum(const std::map<uint64_t, int64_t>& demand_by_holders) {
  uint64_t all = 0;
  for (const auto& [mask, bytes] : demand_by_holders) all |= mask;
  double most = 0;
  for (uint64_t set = all; set > 0; set = (set - 1) & all) {
    int64_t inside = 0;
    for (const auto& [mask, bytes] : demand_by_holders)
      if ((mask & ~set) == 0) inside += bytes;
    most = std::max(most, static_cast<double>(inside) / std::popcount(set));
  }
  return most;
}

// Element by element: who could send it, and to how many.
void add_demand(const test::OwnerMap& from, const test::OwnerMap& to, int64_t element_size, std::map<uint64_t, int64_t>* out) {
  for (size_t g = 0; g < static_cast<size_t>(test::product(from.shape)); ++g) {
    uint64_t holders = 0;
    for (size_t r = 0; r < from.ranks.size(); ++r)
      if (from.ranks[r].in_mesh && from.ranks[r].holds[g]) holders |= uint64_t{1} << r;
    int64_t lacking = 0;
    for (size_t r = 0; r < to.ranks.size(); ++r) lacking += to.ranks[r].in_mesh && to.ranks[r].holds[g] && !(holders >> r & 1);
    if (lacking > 0) (*out)[holders] += lacking * element_size;
  }
}

std::vector<int> same_ranks() {
  std::vector<int> out(16);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

TEST(RefitPlan, RandomTensorsArriveOnceAndSendersAreEven) {
  const CounterRng rng(5);
  int64_t moved = 0, shared = 0, split = 0;
  for (uint64_t i = 0; i < 3000; ++i) {
    test::Dice dice(rng.at(i));
    std::vector<Layout> from, to;
    std::vector<RefitTensor> tensors;
    std::map<uint64_t, int64_t> demand;
    std::map<int64_t, int64_t> needed;
    for (int64_t n = 1 + dice.below(4); n > 0; --n) {
      const std::vector<int64_t> shape = test::random_shape(dice);
      from.push_back(test::random_layout(dice, shape));
      to.push_back(test::random_layout(dice, shape));
      const DType dtype = dice.below(2) ? DType::kBF16 : DType::kF32;
      const int64_t size = dtype_bytes(dtype);
      tensors.push_back({"t", shape, dtype, holder_sets_of(from.back(), same_ranks()),
                         holder_sets_of(to.back(), same_ranks())});
      add_demand(test::owner_map(from.back()), test::owner_map(to.back()), size, &demand);
      for (int64_t r : to.back().mesh().ranks())
        if (const int64_t bytes = missing_bytes(from.back(), to.back(), r, size); bytes > 0) needed[r] += bytes;
    }
    const RefitPlan plan = plan_refit(tensors);
    for (size_t t = 0; t < tensors.size(); ++t) {
      ASSERT_EQ(test::wrong_with_plan(test::owner_map(from[t]), test::owner_map(to[t]), plan.transfers[t]), "")
          << i << ": " << from[t].to_string() << " -> " << to[t].to_string();
      check_plan(plan.transfers[t], from[t], to[t]);
    }
    ASSERT_EQ(plan.received, needed) << i;
    std::map<int64_t, int64_t> sent;
    for (size_t t = 0; t < tensors.size(); ++t)
      for (const auto& [rank, bytes] : bytes_sent(plan.transfers[t], dtype_bytes(tensors[t].dtype))) sent[rank] += bytes;
    ASSERT_EQ(plan.sent, sent) << i;
    int64_t most = 0;
    for (const auto& [rank, bytes] : sent) most = std::max(most, bytes);
    const double least = fractional_optimum(demand);
    ASSERT_LE(static_cast<double>(most), least + static_cast<double>(plan.largest_box)) << i;
    ASSERT_GE(static_cast<double>(most), least) << i;
    moved += !sent.empty();
    shared += std::any_of(demand.begin(), demand.end(), [](const auto& d) { return std::popcount(d.first) > 1; });
    size_t copies = 0, transfers = 0;
    for (size_t t = 0; t < tensors.size(); ++t) copies += plan_copy(from[t], to[t]).size(), transfers += plan.transfers[t].size();
    split += transfers > copies;
    ASSERT_EQ(plan_refit(tensors).transfers, plan.transfers);
  }
  // The sample holds what it is for.
  EXPECT_GT(moved, 2000);
  EXPECT_GT(shared, 500);
  EXPECT_GT(split, 200);
}

// Four ranks hold copies and two of them hold more besides: the other two send all of the first tensor.
TEST(RefitPlan, SendersWithMoreToDoElsewhereSendLess) {
  const DeviceMesh four({"r"}, {4}), two({"r"}, {2}, {0, 1}), away({"r"}, {1}, {9});
  const Layout copies = Layout::replicated({100}, four), halves = Layout::replicated({100}, two),
               there = Layout::replicated({100}, away);
  const std::vector<int> ranks = same_ranks();
  const auto tensor = [&](const char* name, const Layout& from) {
    return RefitTensor{name, {100}, DType::kF32, holder_sets_of(from, ranks), holder_sets_of(there, ranks)};
  };
  EXPECT_EQ(plan_refit(std::vector{tensor("a", copies), tensor("b", halves)}).sent,
            (std::map<int64_t, int64_t>{{0, 200}, {1, 200}, {2, 200}, {3, 200}}));
  EXPECT_EQ(plan_refit(std::vector{tensor("b", halves), tensor("c", halves), tensor("a", copies)}).sent,
            (std::map<int64_t, int64_t>{{0, 400}, {1, 400}, {2, 200}, {3, 200}}));
}

// q, k and v of a trainer become one tensor of each tp rank: [q of the rank; k of the rank; v of the rank].
TEST(RefitPlan, PartsOfFusedTensors) {
  const DeviceMesh trainer({"fsdp"}, {3}), tp({"tp"}, {2}, {3, 4});
  const int64_t rows[] = {10, 4, 4};
  std::vector<RefitTensor> tensors;
  int64_t at = 0;
  for (int part = 0; part < 3; ++part) {
    const Layout from = Layout::replicated({rows[part], 6}, trainer).with_cut({"fsdp", 0}),
                 to = Layout::replicated({rows[part], 6}, tp).with_cut({"tp", 0});
    RefitTensor t{std::string(1, "qkv"[part]), {rows[part], 6}, DType::kBF16, holder_sets_of(from, same_ranks()), holder_sets_of(to, same_ranks())};
    for (HolderSet& set : t.to)
      for (LocalBox& box : set.boxes) box.local_offset[0] += at;
    at += rows[part] / 2;
    tensors.push_back(std::move(t));
  }
  const RefitPlan plan = plan_refit(tensors);
  // Every row of the fused tensors is written once, with the row that belongs there.
  std::map<std::pair<int64_t, int64_t>, std::pair<int, int64_t>> written;  // (rank, fused row) -> (part, row)
  for (int part = 0; part < 3; ++part)
    for (const Transfer& t : plan.transfers[static_cast<size_t>(part)]) {
      EXPECT_EQ(t.box.size[1], 6);
      for (int64_t i = 0; i < t.box.size[0]; ++i)
        EXPECT_TRUE(written.try_emplace({t.destination, t.destination_offset[0] + i}, part, t.box.offset[0] + i).second);
    }
  for (int64_t rank : {3, 4}) {
    int64_t row = 0;
    for (int part = 0; part < 3; ++part)
      for (int64_t i = 0; i < rows[part] / 2; ++i)
        EXPECT_EQ(written.at({rank, row++}), std::pair(part, (rank - 3) * rows[part] / 2 + i));
  }
  EXPECT_EQ(plan.received, (std::map<int64_t, int64_t>{{3, 9 * 6 * 2}, {4, 9 * 6 * 2}}));
}

TEST(RefitPlan, ElementsThatNobodyHolds) {
  const Layout half = Layout::from_boxes({4}, {{0, {{{0}, {2}}}}}), whole = Layout::replicated({4}, DeviceMesh({"r"}, {1}, {1}));
  const std::vector<RefitTensor> tensors{{"w", {4}, DType::kF32, half.holder_sets(), whole.holder_sets()}};
  EXPECT_THAT([&] { plan_refit(tensors); }, ThrowsMessage<ValueError>(HasSubstr("w: rank 1 needs [0:4] and 2 of its 4")));
}

}  // namespace
}  // namespace weft
