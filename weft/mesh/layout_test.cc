#include "weft/mesh/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/mesh/test_support.h"

namespace weft {
namespace {

using test::expect_value_error;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

DeviceMesh two_axes(int64_t f, int64_t t) { return DeviceMesh({"fsdp", "tp"}, {f, t}); }

TEST(Layout, ChunksAreCeil) {
  const Layout five = Layout::replicated({5, 3}, DeviceMesh({"fsdp"}, {4})).with_cut({.axis = "fsdp", .dim = 0});
  EXPECT_EQ(five.local_shape(0), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(five.local_shape(2), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(five.local_shape(3), (std::vector<int64_t>{0, 3}));  // empty, and keeps its other dims
  EXPECT_THAT(five.boxes(3), IsEmpty());
  EXPECT_EQ(five.numel(3), 0);
  EXPECT_EQ(five.boxes(1), (std::vector<LocalBox>{{{{2, 0}, {2, 3}}, {0, 0}}}));
  EXPECT_EQ(five.local_shape(4), (std::vector<int64_t>{0, 0}));  // outside the mesh
  EXPECT_THAT(five.boxes(4), IsEmpty());
  EXPECT_EQ(five.to_string(), "[5, 3] on (fsdp=4): fsdp cuts dim 0");
  // 20 experts on 8 ranks.
  const Layout experts = Layout::replicated({20}, DeviceMesh({"ep"}, {8})).with_cut({.axis = "ep", .dim = 0});
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < 8; ++r) rows.push_back(experts.numel(r));
  EXPECT_THAT(rows, ElementsAre(3, 3, 3, 3, 3, 3, 2, 0));
}

// fsdp divides what tp left: rank (f, t) has block t * F + f, not f * T + t.
TEST(Layout, LaterCutsDivideWhatEarlierOnesLeft) {
  const Layout whole = Layout::replicated({8}, two_axes(2, 2));
  const Layout layout = whole.with_cut({.axis = "tp"}).with_cut({.axis = "fsdp"});
  const auto first = [](const Layout& l, int64_t rank) { return l.intervals(rank, 0).at(0).begin; };
  EXPECT_EQ(first(layout, 0), 0);  // (0, 0)
  EXPECT_EQ(first(layout, 1), 4);  // (0, 1)
  EXPECT_EQ(first(layout, 2), 2);  // (1, 0)
  EXPECT_EQ(first(layout, 3), 6);  // (1, 1)
  // Read left to right as if fsdp came first, the same shards are another permutation of the tensor: 0 1 4 5 2 3 6 7.
  const Layout naive = whole.with_cut({.axis = "fsdp"}).with_cut({.axis = "tp"});
  std::vector<int64_t> gathered(8);
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t i = 0; i < 2; ++i) gathered[first(naive, r) + i] = first(layout, r) + i;
  EXPECT_THAT(gathered, ElementsAre(0, 1, 4, 5, 2, 3, 6, 7));
}

TEST(Layout, PartsCutEachSegment) {
  // Gate rows 0..5 and up rows 6..11.
  const Layout layout = Layout::replicated({12, 2}, DeviceMesh({"tp"}, {2})).with_cut({.axis = "tp", .dim = 0, .parts = 2});
  EXPECT_EQ(layout.intervals(0, 0), (std::vector<Interval>{{0, 3}, {6, 9}}));
  EXPECT_EQ(layout.intervals(1, 0), (std::vector<Interval>{{3, 6}, {9, 12}}));
  EXPECT_EQ(layout.boxes(1), (std::vector<LocalBox>{{{{3, 0}, {3, 2}}, {0, 0}}, {{{9, 0}, {3, 2}}, {3, 0}}}));
  EXPECT_EQ(layout.local_shape(1), (std::vector<int64_t>{6, 2}));
  EXPECT_EQ(layout.to_string(), "[12, 2] on (tp=2): tp cuts dim 0 in 2 parts");
  // fsdp over the rows that are left crosses the halves.
  const Layout both = Layout::replicated({12, 2}, two_axes(4, 2))
                          .with_cut({.axis = "tp", .dim = 0, .parts = 2})
                          .with_cut({.axis = "fsdp", .dim = 0});
  EXPECT_EQ(both.intervals(3, 0), (std::vector<Interval>{{5, 6}, {9, 10}}));  // (1, 1)
  // One rank: the parts join again.
  const Layout one = Layout::replicated({12}, DeviceMesh({"tp"}, {1})).with_cut({.axis = "tp", .dim = 0, .parts = 2});
  EXPECT_EQ(one.intervals(0, 0), (std::vector<Interval>{{0, 12}}));
}

TEST(Layout, BoundariesMayBeUnevenAndEmpty) {
  const Layout layout =
      Layout::replicated({13}, DeviceMesh({"tp"}, {8})).with_cut({.axis = "tp", .boundaries = contraction_boundaries(13, 8)});
  EXPECT_THAT(layout.boxes(0), IsEmpty());
  EXPECT_EQ(layout.intervals(1, 0), (std::vector<Interval>{{0, 2}}));
  EXPECT_EQ(layout.intervals(7, 0), (std::vector<Interval>{{12, 13}}));
  const Layout halves = Layout::replicated({26}, DeviceMesh({"tp"}, {2}))
                            .with_cut({.axis = "tp", .parts = 2, .boundaries = contraction_boundaries(13, 2)});
  EXPECT_EQ(halves.intervals(0, 0), (std::vector<Interval>{{0, 6}, {13, 19}}));
  EXPECT_EQ(halves.intervals(1, 0), (std::vector<Interval>{{6, 13}, {19, 26}}));
  EXPECT_EQ(halves.to_string(), "[26] on (tp=2): tp cuts dim 0 in 2 parts at [0, 6, 13]");
}

TEST(Layout, ScalarsAndEmptyTensors) {
  const Layout scalar = Layout::replicated({}, two_axes(2, 1));
  EXPECT_EQ(scalar.boxes(1), (std::vector<LocalBox>{{{{}, {}}, {}}}));
  EXPECT_EQ(scalar.numel(1), 1);
  EXPECT_EQ(scalar.numel(2), 0);
  EXPECT_THAT(scalar.local_shape(0), IsEmpty());
  ASSERT_EQ(scalar.holder_sets().size(), 1u);
  EXPECT_THAT(scalar.holder_sets()[0].ranks, ElementsAre(0, 1));
  const Layout empty =
      Layout::replicated({0, 4}, two_axes(2, 2)).with_cut({.axis = "tp", .dim = 0}).with_cut({.axis = "fsdp", .dim = 1});
  EXPECT_EQ(empty.local_shape(3), (std::vector<int64_t>{0, 2}));
  EXPECT_THAT(empty.boxes(3), IsEmpty());
  EXPECT_THAT(empty.holder_sets(), IsEmpty());
  EXPECT_EQ(Layout::replicated({3}, DeviceMesh()).numel(0), 3);
}

TEST(Layout, HolderSetsGroupCopies) {
  const DeviceMesh mesh({"replicate", "fsdp"}, {2, 2}, {6, 4, 0, 2});
  const std::vector<HolderSet> sets = Layout::replicated({4}, mesh).with_cut({.axis = "fsdp"}).holder_sets();
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_THAT(sets[0].ranks, ElementsAre(0, 6));
  EXPECT_THAT(sets[1].ranks, ElementsAre(2, 4));
  EXPECT_EQ(sets[1].boxes[0].box, (Box{{2}, {2}}));
}

TEST(Layout, MadeOfBoxes) {
  const Layout files = Layout::from_boxes(
      {6, 4}, {{0, {{{0, 0}, {2, 4}}, {{4, 0}, {2, 4}}}}, {3, {{{2, 0}, {2, 4}}}}, {5, {}}, {7, {{{2, 0}, {2, 4}}}}});
  EXPECT_EQ(files.local_shape(0), (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(files.boxes(0)[1].local_offset, (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(files.intervals(3, 0), (std::vector<Interval>{{2, 4}}));
  EXPECT_THROW(files.intervals(0, 0), ValueError);
  EXPECT_THAT(files.boxes(5), IsEmpty());
  EXPECT_EQ(files.local_shape(5), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(files.numel(1), 0);
  const std::vector<HolderSet> sets = files.holder_sets();
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_THAT(sets[1].ranks, ElementsAre(3, 7));
  EXPECT_EQ(files.to_string(), "[6, 4]: rank 0 [0:2, 0:4] [4:6, 0:4], rank 3 [2:4, 0:4], rank 5, rank 7 [2:4, 0:4]");
  EXPECT_EQ(Layout::from_boxes({}, {{2, {{}}}}).numel(2), 1);
}

TEST(Layout, ErrorsSayWhatDoesNotFit) {
  const Layout layout = Layout::replicated({8, 6}, two_axes(2, 2)).with_cut({.axis = "tp", .dim = 0});
  expect_value_error([&] { layout.with_cut({.axis = "ep", .dim = 0}); },
                     "[8, 6] on (fsdp=2, tp=2): tp cuts dim 0, cut of dim 0 by ep: the mesh has no such axis");
  expect_value_error([&] { layout.with_cut({.axis = "tp", .dim = 1}); }, "cuts already");
  expect_value_error([&] { layout.with_cut({.axis = "fsdp", .dim = 2}); }, "no such dim");
  expect_value_error([&] { layout.with_cut({.axis = "fsdp", .dim = -1}); }, "no such dim");
  expect_value_error([&] { layout.with_cut({.axis = "fsdp", .dim = 1, .parts = 4}); }, "a length of 6 is no 4 equal parts");
  expect_value_error([&] { layout.with_cut({.axis = "fsdp", .dim = 1, .parts = 0}); }, "0 parts");
  expect_value_error([&] { layout.with_cut({.axis = "fsdp", .dim = 1, .boundaries = {0, 6}}); }, "2 boundaries for 2 ranks");
  expect_value_error([&] { layout.with_cut({.axis = "fsdp", .dim = 1, .boundaries = {0, 3, 5}}); }, "do not ascend from 0 to 6");
  expect_value_error([&] { layout.with_cut({.axis = "fsdp", .dim = 1, .boundaries = {0, 7, 6}}); }, "do not ascend");
  expect_value_error([&] { layout.with_cut({.axis = "fsdp", .dim = 0, .boundaries = {0, 4, 8}}); }, "do not ascend from 0 to 4");
  expect_value_error([&] { layout.with_partial("tp", ReduceOp::kSum); }, "cuts already");
  expect_value_error([&] { layout.with_partial("fsdp", ReduceOp::kSum).with_cut({.axis = "fsdp", .dim = 1}); },
                     "partial already");
  const Layout two = Layout::replicated({8}, two_axes(2, 2)).with_partial("tp", ReduceOp::kSum);
  expect_value_error([&] { two.with_partial("fsdp", ReduceOp::kMax); },
                     "partial(max) on fsdp: does not commute with the sum on tp");
  EXPECT_EQ(two.with_partial("fsdp", ReduceOp::kAvg).to_string(),
            "[8] on (fsdp=2, tp=2): tp is partial(sum), fsdp is partial(avg)");
  // A length that differs from rank to rank takes no boundaries.
  const Layout uneven = Layout::replicated({5}, two_axes(2, 2)).with_cut({.axis = "tp", .dim = 0});
  expect_value_error([&] { uneven.with_cut({.axis = "fsdp", .dim = 0, .boundaries = {0, 1, 3}}); }, "do not ascend from 0 to 2");
  expect_value_error([] { Layout::replicated({-1}, DeviceMesh()); }, "[-1] is no shape");
  expect_value_error([] { Layout::replicated({int64_t{1} << 40, int64_t{1} << 40}, DeviceMesh()); }, "no shape");
  expect_value_error([] { Layout::from_boxes({4}, {}); }, "no rank");
  expect_value_error([] { Layout::from_boxes({4}, {{0, {{{3}, {2}}}}}); }, "box [3:5] of rank 0 in [4]: outside the tensor");
  expect_value_error([] { Layout::from_boxes({4}, {{0, {{{-1}, {2}}}}}); }, "outside");
  expect_value_error([] { Layout::from_boxes({4}, {{0, {{{0, 0}, {2, 1}}}}}); }, "another number of dims");
  expect_value_error([] { Layout::from_boxes({4}, {{0, {{{0}, {2}}, {{1}, {2}}}}}); }, "overlaps [0:2]");
  expect_value_error(
      [] {
        Layout::from_boxes({4, 4}, {{0, {{{0, 0}, {2, 4}}, {{2, 0}, {2, 3}}}}});
      },
      "cannot lie behind [0:2, 0:4]");
  expect_value_error([&] { Layout::from_boxes({4}, {{0, {}}}).with_cut({.axis = "holder"}); }, "is as it is");
}

// Intervals, boxes and shapes against lists of elements, and back: every element is where the boxes say, in the order of the
// local tensor; the shards of an ordinary layout cover the tensor without overlap.
TEST(Layout, AgreesWithListsOfElements) {
  int64_t layouts = 0;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{}, {0}, {1}, {7}, {13}, {5, 3}, {8, 1}, {0, 4}, {13, 6}, {4, 3, 5}})
    for (const test::Case& c : test::all_cases(shape, test::two_axis_meshes(8))) {
      std::vector<int64_t> copies(test::product(shape), 0);
      for (int64_t r : c.layout.mesh().ranks()) {
        const test::OwnerMap::Rank& expected = c.map.at(r);
        ASSERT_EQ(c.layout.local_shape(r), expected.shape) << c.layout.to_string();
        ASSERT_EQ(c.layout.numel(r), static_cast<int64_t>(expected.global.size()));
        int64_t seen = 0;
        for (const LocalBox& b : c.layout.boxes(r))
          test::each_index(b.box.size, [&](const std::vector<int64_t>& i) {
            ++seen;
            ASSERT_EQ(expected.global[test::flat_at(b.local_offset, i, expected.shape)], test::flat_at(b.box.offset, i, shape));
          });
        ASSERT_EQ(seen, c.layout.numel(r));
        for (int64_t g : expected.global) ++copies[g];
      }
      for (int64_t n : copies) ASSERT_EQ(n, copies[0]) << c.layout.to_string();
      std::vector<int64_t> in_sets(test::product(shape), 0);
      for (const HolderSet& set : c.layout.holder_sets())
        for (const LocalBox& b : set.boxes)
          test::each_index(b.box.size, [&](const std::vector<int64_t>& i) { ++in_sets[test::flat_at(b.box.offset, i, shape)]; });
      for (int64_t n : in_sets) ASSERT_EQ(n, 1) << c.layout.to_string();
      ++layouts;
    }
  EXPECT_GT(layouts, 1000);
}

}  // namespace
}  // namespace weft
