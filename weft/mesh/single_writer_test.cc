// Every element is written once, by a rank that holds it and from where it holds it; boxes in runs and parts.
#include "weft/mesh/single_writer.h"

#include <gtest/gtest.h>

#include "weft/mesh/test_random_layouts.h"
#include "weft/mesh/test_support.h"

namespace weft::test {
namespace {

// "" or what is wrong.
std::string wrong_with_writers(const Layout& layout) {
  const OwnerMap map = owner_map(layout);
  std::vector<int> written(static_cast<size_t>(product(layout.shape())), 0);
  std::string wrong;
  for (int64_t rank : layout.mesh().ranks())
    for (const LocalBox& b : boxes_to_write(layout, rank)) {
      if (b.box.numel() == 0) return "an empty box";
      each_index(b.box.size, [&](const std::vector<int64_t>& i) {
        const int64_t g = flat_at(b.box.offset, i, map.shape), l = flat_at(b.local_offset, i, map.at(rank).shape);
        if (g < 0 || l < 0 || map.at(rank).global[static_cast<size_t>(l)] != g)
          wrong = fmt::format("rank {} does not hold {} there", rank, box_text(b.box));
        else if (++written[static_cast<size_t>(g)] > 1)
          wrong = fmt::format("{} of rank {} was written before", box_text(b.box), rank);
      });
    }
  for (int n : written)
    if (n != 1 && wrong.empty()) wrong = "an element is not written";
  return wrong;
}

TEST(SingleWriter, EveryCutOfSmallMeshes) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{}, {1}, {5}, {4, 3}, {1, 7}, {2, 3, 4}, {3, 0}})
    for (const Case& c : all_cases(shape, two_axis_meshes(8)))
      ASSERT_EQ(wrong_with_writers(c.layout), "") << c.layout.to_string();
}

TEST(SingleWriter, RandomLayouts) {
  for (uint64_t key = 0; key < 3000; ++key) {
    Dice dice(key);
    const Layout layout = random_layout(dice, random_shape(dice));
    ASSERT_EQ(wrong_with_writers(layout), "") << layout.to_string() << ", key " << key;
  }
}

TEST(SingleWriter, CopiesShareTheWork) {
  const Layout layout = Layout::replicated({3, 64}, DeviceMesh({"replicate", "fsdp"}, {4, 2})).with_cut({"fsdp", 1});
  for (int64_t rank = 0; rank < 8; ++rank) {
    int64_t n = 0;
    for (const LocalBox& b : boxes_to_write(layout, rank)) n += b.box.numel();
    EXPECT_EQ(n, 3 * 64 / 8) << rank;
  }
  EXPECT_TRUE(boxes_to_write(layout, 8).empty());
  expect_value_error([&] { boxes_to_write(layout.with_partial("replicate", ReduceOp::kSum), 0); }, "no rule");
  expect_value_error([&] { boxes_to_write(Layout::from_boxes({2}, {{0, {{{0}, {2}}}}}), 0); }, "no rule");
}

TEST(BoxRuns, AreTheBoxInOrderAndTheLongest) {
  for (uint64_t key = 0; key < 3000; ++key) {
    Dice dice(key);
    const std::vector<int64_t> shape = random_shape(dice);
    const std::vector<Box> tiles = random_tiles(dice, shape);
    const Box box = tiles[static_cast<size_t>(dice.below(static_cast<int64_t>(tiles.size())))];
    std::vector<int64_t> expected, found, of_parts;
    if (box.numel() > 0)
      each_index(box.size, [&](const std::vector<int64_t>& i) { expected.push_back(flat_at(box.offset, i, shape)); });
    int64_t end = -1;
    for_each_run(shape, box, [&](int64_t first, int64_t count) {
      EXPECT_GT(count, 0);
      EXPECT_NE(first, end) << "two runs that are one, key " << key;
      for (int64_t i = 0; i < count; ++i) found.push_back(first + i);
      end = first + count;
    });
    ASSERT_EQ(found, expected) << box_text(box) << " of " << shape_text(shape);
    const int64_t most = dice.below(7);
    for_each_part(box, most, [&](const Box& part) {
      EXPECT_LE(part.numel(), std::max<int64_t>(1, most));
      each_index(part.size, [&](const std::vector<int64_t>& i) { of_parts.push_back(flat_at(part.offset, i, shape)); });
    });
    std::sort(of_parts.begin(), of_parts.end());
    ASSERT_EQ(of_parts, expected) << box_text(box) << " in parts of " << most;
  }
}

}  // namespace
}  // namespace weft::test
