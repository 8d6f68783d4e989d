#include "weft/comm/memory_box.h"

#include <gtest/gtest.h>

#include <numeric>

#include "weft/base/random.h"

namespace weft {
namespace {

// Element by element, the boxes of two tensors of random shapes.
TEST(MemoryBox, CopiesEqualElementByElement) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const CounterRng rng(seed);
    uint64_t at = 0;
    const auto below = [&](int64_t n) { return static_cast<int64_t>(rng.below(at++, static_cast<uint64_t>(n))); };
    const size_t dims = static_cast<size_t>(below(4));
    const int64_t item = int64_t{1} << below(4);
    std::vector<int64_t> size, shape[2], offset[2];
    for (size_t d = 0; d < dims; ++d) {
      size.push_back(below(12) ? 1 + below(4) : 0);
      for (int side : {0, 1}) {
        shape[side].push_back(size[d] + below(2) * below(3));
        offset[side].push_back(below(shape[side][d] - size[d] + 1));
      }
    }
    std::vector<std::byte> memory[2];
    for (int side : {0, 1}) {
      int64_t bytes = item;
      for (int64_t s : shape[side]) bytes *= s;
      memory[side].resize(static_cast<size_t>(bytes));
    }
    for (size_t i = 0; i < memory[1].size(); ++i) memory[1][i] = static_cast<std::byte>(i % 251 + 1);
    std::vector<std::byte> expected = memory[0];
    std::vector<int64_t> index(dims, 0);
    int64_t count = 1;
    for (int64_t s : size) count *= s;
    for (int64_t n = 0; n < count; ++n) {
      int64_t place[2] = {0, 0};
      for (int side : {0, 1})
        for (size_t d = 0; d < dims; ++d) place[side] = place[side] * shape[side][d] + offset[side][d] + index[d];
      for (int64_t b = 0; b < item; ++b)
        expected[static_cast<size_t>(place[0] * item + b)] = memory[1][static_cast<size_t>(place[1] * item + b)];
      for (size_t d = dims; d-- > 0;) {
        if (++index[d] < size[d]) break;
        index[d] = 0;
      }
    }
    const MemoryBox to = memory_box(memory[0].data(), shape[0], offset[0], size, item),
                    from = memory_box(memory[1].data(), shape[1], offset[1], size, item);
    ASSERT_EQ(to.bytes(), count * item);
    const std::vector<std::byte> before = memory[0];
    copy_box(to, from);
    ASSERT_EQ(memory[0], expected) << seed;
    // Through contiguous memory the same.
    memory[0] = before;
    std::vector<std::byte> flat(static_cast<size_t>(count * item));
    copy_box(contiguous_box(flat.data(), count * item), from);
    copy_box(to, contiguous_box(flat.data(), count * item));
    ASSERT_EQ(memory[0], expected) << seed;
  }
}

// Rows above and below what is streamed, at any place in a line; nothing else is written.
TEST(MemoryBox, StreamedCopiesAreCopies) {
  for (const int64_t row : {100, 511, 512, 513, 700, 1600})
    for (const int64_t gap : {0, 5, 64}) {
      const int64_t rows = 5, size = rows * (row + gap) + 3;
      std::vector<std::byte> from(static_cast<size_t>(rows * row + 1)), cached(static_cast<size_t>(size), std::byte{0xee});
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
      std::vector<std::byte> streamed = cached;
      const auto box_in = [&](std::vector<std::byte>& memory) { return MemoryBox{memory.data() + 3, {rows, row}, {row + gap, 1}}; };
      copy_box(box_in(cached), contiguous_box(from.data() + 1, rows * row));
      copy_box(box_in(streamed), contiguous_box(from.data() + 1, rows * row), Stores::kStreamed);
      ASSERT_EQ(streamed, cached) << row << " " << gap;
      std::vector<std::byte> back(from.size());
      copy_boxes({contiguous_box(back.data() + 1, rows * row)}, {box_in(streamed)}, Stores::kStreamed);
      back[0] = from[0];
      ASSERT_EQ(back, from) << row << " " << gap;
    }
}

}  // namespace
}  // namespace weft
