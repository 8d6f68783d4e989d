#include "weft/mesh/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "weft/mesh/test_random_layouts.h"
#include "weft/mesh/test_support.h"

namespace weft {
namespace {

using test::Case;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Plan, OneDimExhaustive) {
  int64_t pairs = 0;
  const std::vector<DeviceMesh> meshes = test::two_axis_meshes(8);
  for (int64_t n = 0; n <= 13; ++n) {
    const std::vector<Case> cases = test::all_cases({n}, meshes);
    for (const Case& from : cases)
      for (const Case& to : cases) {
        ASSERT_EQ(test::wrong_with_pair(from, to), "");
        ++pairs;
      }
  }
  EXPECT_EQ(pairs, 14 * 100 * 100);
}

// A fixed 1 in 101 of the product that tests/mesh_plan_slow_test.cc runs whole (101 is prime, so every axis of the product is
// covered).
TEST(Plan, TwoDimsSampled) {
  int64_t at = 0, pairs = 0;
  const std::vector<DeviceMesh> meshes = test::two_axis_meshes(8);
  for (int64_t rows : {0, 1, 2, 3, 5, 8, 13})
    for (int64_t columns : {0, 1, 2, 3, 5, 8, 13}) {
      const std::vector<Case> cases = test::all_cases({rows, columns}, meshes);
      for (const Case& from : cases)
        for (const Case& to : cases) {
          if (at++ % 101 != 0) continue;
          ASSERT_EQ(test::wrong_with_pair(from, to), "");
          ++pairs;
        }
    }
  EXPECT_GT(pairs, 20000);
}

TEST(Plan, RandomLayoutsOfThreeDims) {
  const CounterRng rng(11);
  int64_t moved = 0, with_parts = 0, nested = 0, of_boxes = 0;
  for (uint64_t i = 0; i < 20000; ++i) {
    test::Dice dice(rng.at(i));
    const std::vector<int64_t> shape = test::random_shape(dice);
    const Layout from = dice.below(5) ? test::random_layout(dice, shape) : test::random_boxes(dice, shape, true);
    const Layout to = dice.below(5) ? test::random_layout(dice, shape) : test::random_boxes(dice, shape, false);
    const std::vector<Transfer> plan = plan_copy(from, to);
    std::string wrong = test::wrong_with_plan(test::owner_map(from), test::owner_map(to), plan);
    if (wrong.empty() && !from.made_of_boxes()) wrong = test::wrong_with_balance(from, plan);
    ASSERT_EQ(wrong, "") << i << ": " << from.to_string() << " -> " << to.to_string();
    check_plan(plan, from, to);
    const std::map<int64_t, int64_t> received = bytes_received(plan, 2);
    for (int64_t r : to.mesh().ranks())
      ASSERT_EQ(received.contains(r) ? received.at(r) : 0, missing_bytes(from, to, r, 2))
          << from.to_string() << " -> " << to.to_string();
    moved += !received.empty();
    of_boxes += from.made_of_boxes() || to.made_of_boxes();
    for (const Layout* l : {&from, &to})
      for (size_t c = 0; c < l->cuts().size(); ++c) {
        with_parts += l->cuts()[c].parts > 1;
        nested +=
            std::count_if(l->cuts().begin(), l->cuts().begin() + c, [&](const Cut& e) { return e.dim == l->cuts()[c].dim; });
      }
  }
  // The sample holds what it is for.
  EXPECT_GT(moved, 10000);
  EXPECT_GT(with_parts, 1000);
  EXPECT_GT(nested, 5000);
  EXPECT_GT(of_boxes, 5000);
}

// The whole tensor gathered from any shards is the tensor, both axes on dim 0 and uneven sizes included.
TEST(Plan, GatheredIsTheOriginal) {
  int64_t layouts = 0;
  for (int64_t f = 1; f <= 6; ++f)
    for (int64_t t = 1; t <= 4; ++t)
      for (const std::vector<int64_t>& shape : {std::vector<int64_t>{8, 4}, {13, 3}, {5, 7}, {24, 1}, {3, 16}, {1, 1}}) {
        const DeviceMesh mesh({"fsdp", "tp"}, {f, t});
        for (const Layout& from : test::all_cuts(shape, mesh)) {
          const test::OwnerMap map = test::owner_map(from);
          const Layout to = Layout::replicated(shape, mesh);
          std::vector<std::vector<int64_t>> full(f * t, std::vector<int64_t>(test::product(shape), -1));
          for (const Transfer& move : plan_copy(from, to))
            test::each_index(move.box.size, [&](const std::vector<int64_t>& i) {
              full[move.destination][test::flat_at(move.destination_offset, i, shape)] =
                  map.at(move.source).global[test::flat_at(move.source_offset, i, map.at(move.source).shape)];
            });
          for (const std::vector<int64_t>& tensor : full)
            for (int64_t i = 0; i < test::product(shape); ++i) ASSERT_EQ(tensor[i], i) << from.to_string();
          ++layouts;
        }
      }
  EXPECT_EQ(layouts, 24 * 6 * 11);
}

// A layout read in the wrong order of its two cuts of one dim is a permutation of the tensor: the check above sees it.
TEST(Plan, WrongOrderOfCutsIsSeen) {
  const Layout whole = Layout::replicated({8}, DeviceMesh({"fsdp", "tp"}, {2, 2}));
  const Layout right = whole.with_cut({.axis = "tp"}).with_cut({.axis = "fsdp"});
  const Layout naive = whole.with_cut({.axis = "fsdp"}).with_cut({.axis = "tp"});
  const test::OwnerMap held = test::owner_map(right), wanted = test::owner_map(whole);
  EXPECT_EQ(test::wrong_with_plan(held, wanted, plan_copy(right, whole)), "");
  EXPECT_THAT(test::wrong_with_plan(held, wanted, plan_copy(naive, whole)), HasSubstr("holds another element"));
}

// Every single thing that can be wrong with a plan is found, by the tests' element-wise check and by the integrity check.
TEST(Plan, DamageIsSeen) {
  const DeviceMesh mesh({"fsdp", "tp"}, {2, 2});
  const Layout from = Layout::replicated({8, 3}, mesh).with_cut({.axis = "tp"}).with_cut({.axis = "fsdp"});
  const Layout to = Layout::replicated({8, 3}, mesh).with_cut({.axis = "fsdp", .dim = 0});
  const test::OwnerMap held = test::owner_map(from), wanted = test::owner_map(to);
  const std::vector<Transfer> good = plan_copy(from, to);
  check_plan(good, from, to);
  int64_t damaged = 0;
  const auto expect_seen = [&](const std::vector<Transfer>& plan) {
    EXPECT_NE(test::wrong_with_plan(held, wanted, plan), "");
    EXPECT_THROW(check_plan(plan, from, to), InternalError);
    ++damaged;
  };
  for (size_t i = 0; i < good.size(); ++i) {
    std::vector<Transfer> plan = good;
    plan.erase(plan.begin() + i);
    expect_seen(plan);  // lost
    plan.insert(plan.begin() + i, {good[i], good[i]});
    expect_seen(plan);  // twice
    const auto change = [&](auto&& how) {
      std::vector<Transfer> other = good;
      how(other[i]);
      expect_seen(other);
    };
    change([](Transfer& t) { t.source = (t.source + 1) % 4; });
    change([](Transfer& t) { t.destination = (t.destination + 1) % 4; });
    change([](Transfer& t) { t.source = 9; });
    change([](Transfer& t) { ++t.box.offset[0]; });
    change([](Transfer& t) { ++t.box.size[0]; });
    change([](Transfer& t) { --t.box.size[1]; });
    change([](Transfer& t) { ++t.source_offset[0]; });
    change([](Transfer& t) { --t.destination_offset[0]; });
  }
  EXPECT_EQ(damaged, static_cast<int64_t>(good.size()) * 10);
}

// Bytes of the collectives that a plan stands for, where the sizes divide.
TEST(Plan, ClosedFormsOfBytes) {
  for (int64_t n : {1, 2, 3, 4, 8}) {
    const int64_t s = 24 * 48, element = 4;
    const DeviceMesh mesh({"x"}, {n});
    const Layout whole = Layout::replicated({24, 48}, mesh);
    const Layout rows = whole.with_cut({.axis = "x", .dim = 0}), columns = whole.with_cut({.axis = "x", .dim = 1});
    const auto expect = [&](const Layout& from, const Layout& to, int64_t elements) {
      const std::vector<Transfer> plan = plan_copy(from, to);
      std::map<int64_t, int64_t> sent = bytes_sent(plan, element), received = bytes_received(plan, element);
      for (int64_t r = 0; r < n; ++r) {
        EXPECT_EQ(sent[r], elements * element) << from.to_string() << " -> " << to.to_string();
        EXPECT_EQ(received[r], elements * element);
      }
    };
    expect(rows, whole, (n - 1) * s / n);
    expect(columns, whole, (n - 1) * s / n);
    expect(rows, columns, (n - 1) * s / (n * n));
    expect(columns, rows, (n - 1) * s / (n * n));
    expect(whole, rows, 0);
    expect(rows, rows, 0);
  }
}

// Each replica of a mesh gathers within itself.
TEST(Plan, ReplicasServeThemselves) {
  const DeviceMesh mesh({"replicate", "fsdp"}, {3, 4});
  const Layout whole = Layout::replicated({8, 2}, mesh);
  for (const Transfer& t : plan_copy(whole.with_cut({.axis = "fsdp"}), whole)) EXPECT_EQ(t.source / 4, t.destination / 4);
  for (const Transfer& t : plan_copy(whole.with_cut({.axis = "fsdp"}), whole.with_cut({.axis = "fsdp", .dim = 1})))
    EXPECT_EQ(t.source / 4, t.destination / 4);
}

TEST(Plan, LoadIsCarriedFromTensorToTensor) {
  // Four copies, one taker: without memory the first holder would send everything.
  const Layout from = Layout::replicated({6}, DeviceMesh({"replicate"}, {4}));
  const Layout to = Layout::replicated({6}, DeviceMesh({"x"}, {1}, {9}));
  SendLoad load;
  std::map<int64_t, int64_t> sent;
  for (int i = 0; i < 8; ++i)
    for (const auto& [rank, bytes] : bytes_sent(plan_copy(from, to, &load), 1)) sent[rank] += bytes;
  EXPECT_EQ(sent, (std::map<int64_t, int64_t>{{0, 12}, {1, 12}, {2, 12}, {3, 12}}));
  EXPECT_EQ(load, sent);
}

// A trainer's experts and dense weights against a rollout of another world on some of the same ranks: the largest sender is
// within one largest box of the fractional optimum, tensors with few holders planned first.
TEST(Plan, SendersOfAModelAreBalanced) {
  for (int64_t replicate : {1, 2, 4}) {
    const DeviceMesh dense({"replicate", "fsdp", "tp"}, {replicate, 4, 2});
    const DeviceMesh experts({"replicate", "efsdp", "ep"}, {replicate, 2, 4});
    const DeviceMesh rollout({"dp", "tp"}, {3, 2}, {100, 101, 102, 103, 104, 105});
    SendLoad load;
    int64_t largest = 0, total = 0;
    const auto plan = [&](const Layout& from, const Layout& to) {
      for (const Transfer& t : plan_copy(from, to, &load)) {
        largest = std::max(largest, t.box.numel());
        total += t.box.numel();
      }
    };
    for (int layer = 0; layer < 6; ++layer) {
      const std::vector<int64_t> e{16, 24, 8}, q{48, 32}, norm{32};
      plan(Layout::replicated(e, experts).with_cut({.axis = "ep"}).with_cut({.axis = "efsdp", .dim = 1}),
           Layout::replicated(e, rollout).with_cut({.axis = "tp"}));
      plan(Layout::replicated(q, dense).with_cut({.axis = "tp"}).with_cut({.axis = "fsdp", .dim = 1}),
           Layout::replicated(q, rollout).with_cut({.axis = "tp"}));
    }
    for (int layer = 0; layer < 6; ++layer)
      plan(Layout::replicated({32}, dense).with_cut({.axis = "fsdp"}), Layout::replicated({32}, rollout));
    int64_t most = 0;
    for (const auto& [rank, elements] : load) most = std::max(most, elements);
    EXPECT_LE(most, total / dense.num_ranks() + largest) << replicate;
  }
}

TEST(Plan, StagesFilesAndEmptyRanks) {
  // A pipeline stage holds the tensor or nothing; a file holds rows of it.
  const Layout files = Layout::from_boxes({6, 2}, {{100, {{{0, 0}, {4, 2}}}}, {101, {{{4, 0}, {2, 2}}}}});
  const Layout stages = Layout::from_boxes({6, 2}, {{0, {}}, {1, {{{0, 0}, {6, 2}}}}});
  const std::vector<Transfer> plan = plan_copy(files, stages);
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[1], (Transfer{101, 1, {{4, 0}, {2, 2}}, {0, 0}, {4, 0}}));
  EXPECT_TRUE(plan_copy(files, Layout::from_boxes({6, 2}, {{0, {}}})).empty());
  const Layout scalar = Layout::replicated({}, DeviceMesh({"x"}, {2}));
  EXPECT_EQ(plan_copy(scalar, Layout::replicated({}, DeviceMesh({"y"}, {3}))).size(), 3u);
}

TEST(Plan, ErrorsSayWhatIsMissing) {
  const Layout half = Layout::from_boxes({6, 2}, {{0, {{{0, 0}, {4, 2}}}}});
  const Layout whole = Layout::replicated({6, 2}, DeviceMesh({"x"}, {2}));
  EXPECT_THAT([&] { plan_copy(half, whole); },
              ThrowsMessage<ValueError>(HasSubstr("rank 0 needs [0:6, 0:2] and 4 of its 12 elements are held by nobody")));
  EXPECT_THAT(
      [&] {
        plan_copy(whole, Layout::replicated({2, 6}, DeviceMesh()));
      },
      ThrowsMessage<ValueError>(HasSubstr("[6, 2] cannot become")));
  EXPECT_THAT([&] { plan_copy(whole.with_partial("x", ReduceOp::kSum), whole); },
              ThrowsMessage<ValueError>(HasSubstr("only redistributed")));
  const Layout overlap = Layout::from_boxes({6}, {{0, {{{0}, {4}}}}, {1, {{{3}, {3}}}}});
  EXPECT_THAT([&] { plan_copy(overlap, Layout::replicated({6}, DeviceMesh())); },
              ThrowsMessage<ValueError>(HasSubstr("[0:4] of rank 0 overlaps [3:6] of rank 1")));
  EXPECT_EQ(plan_copy(Layout::replicated({6}, DeviceMesh()), overlap).size(), 2u);  // as a destination it is fine
}

double best_milliseconds(const Layout& from, const Layout& to) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    plan_copy(from, to);
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// Bounds far above what is measured: they catch a planner that has become quadratic, not a busy machine.
TEST(Plan, IsQuick) {
  const DeviceMesh trainer({"replicate", "fsdp", "tp"}, {2, 16, 2}), rollout({"dp", "tp"}, {8, 8});
  const Layout a = Layout::replicated({4096, 4096}, trainer).with_cut({.axis = "tp"}).with_cut({.axis = "fsdp", .dim = 1});
  const Layout b = Layout::replicated({4096, 4096}, rollout).with_cut({.axis = "tp"});
  const double small = best_milliseconds(a, b);
  const DeviceMesh big({"fsdp", "tp"}, {512, 8}), big_rollout({"dp", "tp"}, {512, 8});
  const Layout c = Layout::replicated({4096, 4096}, big).with_cut({.axis = "tp"}).with_cut({.axis = "fsdp", .dim = 1});
  const Layout rows = Layout::replicated({4096, 4096}, trainer.flatten({"replicate", "fsdp", "tp"}, "x")).with_cut({.axis = "x"});
  const Layout columns = Layout::replicated({4096, 4096}, rows.mesh()).with_cut({.axis = "x", .dim = 1});
  const double all_to_all = best_milliseconds(rows, columns);  // 4096 transfers
  const double large = best_milliseconds(
      c, Layout::replicated({4096, 4096}, big_rollout).with_cut({.axis = "tp"}).with_cut({.axis = "dp", .dim = 1}));
  RecordProperty("ms_64_ranks", fmt::format("{:.2f}", small));
  RecordProperty("ms_64_ranks_all_to_all", fmt::format("{:.2f}", all_to_all));
  RecordProperty("ms_4096_ranks", fmt::format("{:.2f}", large));
  EXPECT_LT(small, 50);
  EXPECT_LT(all_to_all, 200);
  EXPECT_LT(large, 1000);
}

}  // namespace
}  // namespace weft
