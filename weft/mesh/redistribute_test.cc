#include "weft/mesh/redistribute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "weft/mesh/test_random_layouts.h"
#include "weft/mesh/test_support.h"

namespace weft {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

double join(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kMin: return std::min(a, b);
    case ReduceOp::kMax: return std::max(a, b);
    default: return a + b;
  }
}

// In order, in one binary tree split at the largest power of two below the number of terms.
double tree(ReduceOp op, const std::vector<double>& terms, size_t begin, size_t end) {
  if (end - begin == 1) return terms[begin];
  size_t half = 1;
  while (half * 2 < end - begin) half *= 2;
  return join(op, tree(op, terms, begin, begin + half), tree(op, terms, begin + half, end));
}

// Local tensors by rank.
using Values = std::map<int64_t, std::vector<double>>;

Values execute(const Stage& stage, const Values& from) {
  Values out;
  for (int64_t r : stage.to.mesh().ranks()) {
    const std::vector<int64_t> shape = stage.to.local_shape(r);
    const size_t n = test::product(shape);
    std::vector<std::vector<double>> terms(n, std::vector<double>(stage.contributions, 0));
    std::vector<int64_t> arrived(n, 0);
    for (const StageTransfer& s : stage.transfers) {
      const Transfer& t = s.transfer;
      if (t.destination != r) continue;
      test::each_index(t.box.size, [&](const std::vector<int64_t>& i) {
        const int64_t at = test::flat_at(t.destination_offset, i, shape);
        terms[at][s.contribution] = from.at(t.source).at(test::flat_at(t.source_offset, i, stage.from.local_shape(t.source)));
        ++arrived[at];
      });
    }
    out[r].resize(n);
    for (size_t i = 0; i < n; ++i) {
      if (arrived[i] == 0 && stage.fill) {
        out[r][i] = identity(*stage.fill);
        continue;
      }
      EXPECT_EQ(arrived[i], stage.contributions);
      out[r][i] = tree(stage.op, terms[i], 0, terms[i].size()) / static_cast<double>(stage.divisor);
    }
  }
  return out;
}

// The coordinates of a rank along some axes as one number, axes in the mesh's order.
int64_t number_of(const DeviceMesh& mesh, int64_t rank, const std::vector<std::string>& axes) {
  int64_t out = 0;
  for (const std::string& axis : axes) out = out * mesh.size(axis) + test::coordinate_of(mesh, rank, axis);
  return out;
}

// A term of an element: no two alike, and sums of them depend on the order.
double term(int64_t element, int64_t coordinate) { return CounterRng(element).normal(coordinate); }

// What is wrong with the whole way from `from` to `to`, each rank's values against direct computation, bit for bit.
std::string wrong_with_values(const Layout& from, const Layout& to) {
  const DeviceMesh& mesh = from.mesh();
  std::vector<std::string> before, reduced, added;
  int64_t terms = 1, divisor = 1;
  ReduceOp op = ReduceOp::kSum;
  const auto op_on = [](const Layout& l, const std::string& axis) {
    for (const Partial& p : l.partials())
      if (p.axis == axis) return p.op;
    return ReduceOp::kSum;
  };
  for (const std::string& axis : mesh.axes()) {
    if (from.partial_axis(axis)) before.push_back(axis);
    if (from.partial_axis(axis) && !to.partial_axis(axis)) {
      reduced.push_back(axis);
      terms *= mesh.size(axis);
      if (op_on(from, axis) == ReduceOp::kAvg)
        divisor *= mesh.size(axis);
      else
        op = op_on(from, axis);
    }
    if (to.partial_axis(axis) && !from.partial_axis(axis)) added.push_back(axis);
  }
  const test::OwnerMap from_map = test::owner_map(from), to_map = test::owner_map(to);
  Values values;
  for (int64_t r : mesh.ranks())
    for (int64_t g : from_map.at(r).global) values[r].push_back(term(g, number_of(mesh, r, before)));
  for (int64_t r : mesh.ranks()) values[r];
  for (const Stage& stage : plan_redistribute(from, to)) values = execute(stage, values);

  for (int64_t r : mesh.ranks()) {
    // The ranks of `from` whose terms belong to this rank's value: same coordinates on what stays partial, all on what is
    // reduced.
    std::vector<int64_t> numbers(terms);
    for (int64_t other : mesh.ranks()) {
      bool same = true;
      for (const std::string& axis : before)
        if (to.partial_axis(axis)) same &= test::coordinate_of(mesh, other, axis) == test::coordinate_of(mesh, r, axis);
      if (same) numbers[number_of(mesh, other, reduced)] = number_of(mesh, other, before);
    }
    bool has_value = true;
    for (const std::string& axis : added)
      has_value &= op_on(to, axis) == ReduceOp::kAvg || test::coordinate_of(mesh, r, axis) == 0;
    double nothing = 0;
    for (const std::string& axis : added)
      if (op_on(to, axis) != ReduceOp::kAvg) nothing = identity(op_on(to, axis));
    const std::vector<int64_t>& global = to_map.at(r).global;
    if (values[r].size() != global.size()) return fmt::format("rank {} has {} elements", r, values[r].size());
    for (size_t i = 0; i < global.size(); ++i) {
      std::vector<double> all;
      for (int64_t k : numbers) all.push_back(term(global[i], k));
      const double expected = has_value ? tree(op, all, 0, all.size()) / static_cast<double>(divisor) : nothing;
      if (values[r][i] != expected) return fmt::format("rank {} element {}: {} instead of {}", r, i, values[r][i], expected);
    }
  }
  return "";
}

// Every placement of every axis: copies, a cut of each dim, partial. `ops` gives the axes' reductions in turn.
std::vector<Layout> all_placements(const std::vector<int64_t>& shape, const DeviceMesh& mesh, const std::vector<ReduceOp>& ops) {
  std::vector<Layout> out;
  for (const Layout& cuts : test::all_cuts(shape, mesh)) {
    std::vector<Layout> here{cuts};
    for (size_t i = 0; i < mesh.axes().size(); ++i) {
      if (cuts.cuts_axis(mesh.axes()[i])) continue;
      for (size_t n = here.size(), k = 0; k < n; ++k) here.push_back(here[k].with_partial(mesh.axes()[i], ops[i % ops.size()]));
    }
    out.insert(out.end(), here.begin(), here.end());
  }
  return out;
}

bool shards_become_partial(const Layout& from, const Layout& to) {
  return std::any_of(to.partials().begin(), to.partials().end(), [&](const Partial& p) { return from.cuts_axis(p.axis); });
}

int64_t check_all_pairs(const std::vector<int64_t>& shape, const DeviceMesh& mesh, const std::vector<ReduceOp>& ops) {
  const std::vector<Layout> layouts = all_placements(shape, mesh, ops);
  int64_t pairs = 0;
  for (const Layout& from : layouts)
    for (const Layout& to : layouts) {
      if (shards_become_partial(from, to)) {
        EXPECT_THROW(plan_redistribute(from, to), ValueError);
        continue;
      }
      const std::string wrong = wrong_with_values(from, to);
      EXPECT_EQ(wrong, "") << from.to_string() << " -> " << to.to_string();
      if (!wrong.empty()) return pairs;
      ++pairs;
    }
  return pairs;
}

const std::vector<std::vector<ReduceOp>> kOps = {
    {ReduceOp::kSum}, {ReduceOp::kAvg}, {ReduceOp::kMax}, {ReduceOp::kMin}, {ReduceOp::kSum, ReduceOp::kAvg}};

TEST(Redistribute, AllPairsOnOneAxis) {
  int64_t pairs = 0;
  for (int64_t n : {1, 2, 3, 4, 5, 7, 8})
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {1}, {7}, {8}, {4, 6}, {5, 3}, {0, 3}, {3, 2, 4}})
      for (const std::vector<ReduceOp>& ops : kOps) pairs += check_all_pairs(shape, DeviceMesh({"x"}, {n}), ops);
  EXPECT_GT(pairs, 2000);
}

TEST(Redistribute, AllPairsOnTwoAxes) {
  int64_t pairs = 0;
  size_t op = 0;
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{2, 2}, {2, 3}, {3, 2}, {4, 2}, {1, 4}})
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{4, 6}, {5, 3}, {1, 8}, {0, 3}})
      pairs += check_all_pairs(shape, DeviceMesh({"a", "b"}, sizes), kOps[op++ % kOps.size()]);
  EXPECT_GT(pairs, 4000);
}

TEST(Redistribute, AllPairsOnThreeAxes) {
  EXPECT_GT(check_all_pairs({4, 6}, DeviceMesh({"a", "b", "c"}, {2, 2, 2}), {ReduceOp::kSum, ReduceOp::kAvg}), 4000);
}

TEST(Redistribute, UnevenThreeAxesSampled) {
  int64_t checked = 0;
  const DeviceMesh mesh({"a", "b", "c"}, {2, 3, 2});
  const std::vector<Layout> layouts = all_placements({6, 5}, mesh, {ReduceOp::kSum, ReduceOp::kAvg});
  test::Dice dice(5);
  while (checked < 1500) {
    const Layout& from = layouts[dice.below(static_cast<int64_t>(layouts.size()))];
    const Layout& to = layouts[dice.below(static_cast<int64_t>(layouts.size()))];
    if (shards_become_partial(from, to)) continue;
    ASSERT_EQ(wrong_with_values(from, to), "") << from.to_string() << " -> " << to.to_string();
    ++checked;
  }
}

// Parts and boundaries on both sides, ranks in any order.
TEST(Redistribute, RandomLayouts) {
  int64_t checked = 0, reductions = 0;
  for (uint64_t i = 0; checked < 6000; ++i) {
    test::Dice dice(i);
    const std::vector<int64_t> shape = test::random_shape(dice);
    Layout from = test::random_layout(dice, shape);
    Layout to = Layout::replicated(shape, from.mesh());
    for (const std::string& axis : from.mesh().axes())
      if (!shape.empty() && dice.below(2))
        to = to.with_cut({.axis = axis, .dim = dice.below(static_cast<int64_t>(shape.size()))});
    for (const std::string& axis : from.mesh().axes()) {
      if (!from.cuts_axis(axis) && dice.below(2)) from = from.with_partial(axis, ReduceOp::kSum);
      if (!to.cuts_axis(axis) && !from.cuts_axis(axis) && dice.below(2)) to = to.with_partial(axis, ReduceOp::kSum);
    }
    if (dice.below(2) && to.partials().empty() && from.partials().empty()) std::swap(from, to);
    ASSERT_EQ(wrong_with_values(from, to), "") << from.to_string() << " -> " << to.to_string();
    reductions += !from.partials().empty();
    ++checked;
  }
  EXPECT_GT(reductions, 1000);
}

// The table of redistribute.h, every rank, sent and received.
TEST(Redistribute, ClosedFormsOfBytes) {
  const int64_t s = 24 * 48;
  for (int64_t n : {1, 2, 3, 4, 8})
    for (int64_t copies : {1, 2}) {
      const DeviceMesh mesh({"copies", "x"}, {copies, n});
      const Layout whole = Layout::replicated({24, 48}, mesh);
      const Layout rows = whole.with_cut({.axis = "x", .dim = 0}), columns = whole.with_cut({.axis = "x", .dim = 1});
      const Layout partial = whole.with_partial("x", ReduceOp::kSum);
      const auto expect = [&](const Layout& from, const Layout& to, int64_t elements, size_t num_stages) {
        std::map<int64_t, int64_t> sent, received;
        const std::vector<Stage> stages = plan_redistribute(from, to);
        EXPECT_EQ(stages.size(), num_stages);
        for (const Stage& stage : stages)
          for (const auto& [t, contribution] : stage.transfers) {
            if (t.source == t.destination) continue;
            EXPECT_EQ(t.source / n, t.destination / n);  // within a replica
            sent[t.source] += t.box.numel();
            received[t.destination] += t.box.numel();
          }
        for (int64_t r = 0; r < copies * n; ++r) {
          EXPECT_EQ(sent[r], elements) << from.to_string() << " -> " << to.to_string();
          EXPECT_EQ(received[r], elements);
        }
      };
      expect(rows, whole, (n - 1) * s / n, 1);
      expect(rows, columns, (n - 1) * s / (n * n), 1);
      expect(partial, rows, (n - 1) * s / n, 1);
      expect(partial, columns, (n - 1) * s / n, 1);
      expect(partial, whole, 2 * (n - 1) * s / n, 2);
      expect(whole, rows, 0, 1);
      expect(whole, partial, 0, 1);
      expect(rows, rows, 0, 0);
    }
}

std::map<int64_t, int64_t> received(const std::vector<Stage>& stages) {
  std::map<int64_t, int64_t> out;
  for (const Stage& stage : stages)
    for (const StageTransfer& s : stage.transfers)
      if (s.transfer.source != s.transfer.destination) out[s.transfer.destination] += s.transfer.box.numel();
  return out;
}

// Sizes that do not divide: exactly the boxes that are missing, no padding.
TEST(Redistribute, UnevenSizesMoveNoPadding) {
  const DeviceMesh mesh({"x"}, {4});
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{5, 7}, {13, 3}, {2, 6}, {1, 1}}) {
    const Layout whole = Layout::replicated(shape, mesh), partial = whole.with_partial("x", ReduceOp::kSum);
    const std::vector<Layout> plain{whole, whole.with_cut({.axis = "x", .dim = 0}), whole.with_cut({.axis = "x", .dim = 1})};
    for (const Layout& from : plain)
      for (const Layout& to : plain) {
        std::map<int64_t, int64_t> got = received(plan_redistribute(from, to));
        for (int64_t r = 0; r < 4; ++r)
          EXPECT_EQ(got[r], missing_bytes(from, to, r, 1)) << from.to_string() << " -> " << to.to_string();
      }
    for (const Layout& to : {plain[1], plain[2]}) {
      std::map<int64_t, int64_t> got = received(plan_redistribute(partial, to));
      for (int64_t r = 0; r < 4; ++r) EXPECT_EQ(got[r], 3 * to.numel(r)) << to.to_string();
    }
    const std::vector<Stage> stages = plan_redistribute(partial, whole);
    std::map<int64_t, int64_t> got = received(stages);
    for (int64_t r = 0; r < 4; ++r) EXPECT_EQ(got[r], 3 * stages[0].to.numel(r) + whole.numel(r) - stages[0].to.numel(r));
  }
}

// Values that become copies are reduced onto the first dim that the axis divides, else the longest.
TEST(Redistribute, WhereReducedValuesLand) {
  const DeviceMesh mesh({"x", "y"}, {4, 2});
  const auto landing = [&](const std::vector<int64_t>& shape) {
    const Layout whole = Layout::replicated(shape, mesh);
    return plan_redistribute(whole.with_partial("x", ReduceOp::kSum), whole)[0].to.cuts();
  };
  EXPECT_EQ(landing({4, 9}).at(0).dim, 0);
  EXPECT_EQ(landing({5, 4, 8}).at(0).dim, 1);
  EXPECT_EQ(landing({5, 7, 6}).at(0).dim, 1);
  EXPECT_EQ(landing({5, 7, 7}).at(0).dim, 1);
  EXPECT_TRUE(landing({}).empty());
  // What another axis leaves of a dim counts: 4 of 8 rows.
  const Layout rows = Layout::replicated({8, 3}, mesh).with_cut({.axis = "y", .dim = 0});
  EXPECT_EQ(plan_redistribute(rows.with_partial("x", ReduceOp::kSum), rows)[0].to.cuts(),
            (std::vector<Cut>{{.axis = "y", .dim = 0}, {.axis = "x", .dim = 0}}));
}

// Terms on one axis, shards on another, both at once.
TEST(Redistribute, SeveralAxesAtOnce) {
  const DeviceMesh mesh({"replicate", "fsdp", "tp"}, {2, 2, 2});
  const Layout whole = Layout::replicated({16, 8}, mesh);
  // A gradient of whole terms over replicate and fsdp to shards of fsdp: reduce-scatter over both, then the other replica's half.
  const Layout cut = whole.with_cut({.axis = "tp", .dim = 1});
  const Layout terms = cut.with_partial("replicate", ReduceOp::kSum).with_partial("fsdp", ReduceOp::kSum);
  const std::vector<Stage> stages = plan_redistribute(terms, cut.with_cut({.axis = "fsdp", .dim = 0}));
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0].contributions, 4);
  const int64_t s = 16 * 8 / 2;
  for (const auto& [rank, elements] : received(stages)) EXPECT_EQ(elements, 3 * s / 4 + s / 4) << rank;
  // avg is a sum and a divisor; a sum beside it is not divided.
  const Layout mixed = whole.with_partial("fsdp", ReduceOp::kAvg).with_partial("tp", ReduceOp::kSum);
  const Stage first = plan_redistribute(mixed, whole)[0];
  EXPECT_EQ(first.op, ReduceOp::kSum);
  EXPECT_EQ(first.contributions, 4);
  EXPECT_EQ(first.divisor, 2);
}

TEST(Redistribute, ErrorsSayWhatCannotBe) {
  const DeviceMesh mesh({"a", "b"}, {2, 2});
  const Layout whole = Layout::replicated({4}, mesh);
  const auto expect = [](const Layout& from, const Layout& to, const std::string& part) {
    EXPECT_THAT([&] { plan_redistribute(from, to); }, ThrowsMessage<ValueError>(HasSubstr(part)));
  };
  expect(whole.with_cut({.axis = "a"}), whole.with_partial("a", ReduceOp::kSum),
         "from [4] on (a=2, b=2): a cuts dim 0 to [4] on (a=2, b=2): a is partial(sum): axis a cuts");
  expect(whole.with_partial("a", ReduceOp::kSum), whole.with_partial("a", ReduceOp::kAvg), "axis a changes its reduction");
  expect(whole, Layout::replicated({5}, mesh), "the shapes differ");
  expect(whole, Layout::replicated({4}, DeviceMesh({"a"}, {4})), "the meshes differ");
  const Layout boxes = Layout::from_boxes({4}, {{0, {{{0}, {4}}}}});
  expect(boxes, boxes, "made of boxes");
}

}  // namespace
}  // namespace weft
