#pragma once
// Random layouts for tests: several axes on one dim, parts, boundaries, boxes, ranks in any order.

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/mesh/layout.h"

namespace weft::test {

class Dice {
 public:
  explicit Dice(uint64_t key) : rng_(key) {}
  int64_t below(int64_t bound) { return static_cast<int64_t>(rng_.below(at_++, static_cast<uint64_t>(bound))); }

 private:
  CounterRng rng_;
  uint64_t at_ = 0;
};

template <typename T>
void shuffle(Dice& dice, std::vector<T>* v) {
  for (size_t i = v->size(); i > 1; --i) std::swap((*v)[i - 1], (*v)[dice.below(static_cast<int64_t>(i))]);
}

// Three dims of up to 8, rarely fewer or empty.
inline std::vector<int64_t> random_shape(Dice& dice) {
  std::vector<int64_t> shape(dice.below(10) ? 3 : dice.below(3));
  for (int64_t& s : shape) s = dice.below(25) ? 1 + dice.below(8) : 0;
  return shape;
}

// Up to three axes of up to 12 ranks, numbered in any order from 0 to 15.
inline Layout random_layout(Dice& dice, const std::vector<int64_t>& shape) {
  std::vector<std::string> axes;
  std::vector<int64_t> sizes;
  int64_t n = 1;
  for (int64_t i = 1 + dice.below(3); i > 0; --i) {
    axes.push_back(std::string(1, static_cast<char>('a' + axes.size())));
    sizes.push_back(1 + dice.below(std::min<int64_t>(4, 12 / n)));
    n *= sizes.back();
  }
  std::vector<int64_t> ranks(16);
  std::iota(ranks.begin(), ranks.end(), 0);
  if (dice.below(2)) shuffle(dice, &ranks);
  ranks.resize(n);
  Layout layout = Layout::replicated(shape, DeviceMesh(axes, sizes, ranks));
  shuffle(dice, &axes);
  for (const std::string& axis : axes) {
    if (shape.empty() || dice.below(4) == 0) continue;
    Cut cut{.axis = axis, .dim = dice.below(dice.below(2) ? 1 : static_cast<int64_t>(shape.size()))};
    if (dice.below(3) == 0) cut.parts = 2 + dice.below(2);
    if (dice.below(3) == 0) {
      const int64_t segment = layout.local_shape(ranks[0])[cut.dim] / cut.parts;
      for (int64_t i = 1; i < layout.mesh().size(axis); ++i) cut.boundaries.push_back(dice.below(segment + 1));
      cut.boundaries.insert(cut.boundaries.end(), {0, segment});
      std::sort(cut.boundaries.begin(), cut.boundaries.end());
    }
    try {
      layout = layout.with_cut(cut);
    } catch (const ValueError&) {  // parts or boundaries that do not fit what is left
      layout = layout.with_cut({.axis = cut.axis, .dim = cut.dim});
    }
  }
  return layout;
}

// Halves boxes at random places.
inline std::vector<Box> random_tiles(Dice& dice, const std::vector<int64_t>& shape) {
  std::vector<Box> tiles{{std::vector<int64_t>(shape.size(), 0), shape}};
  for (int64_t cuts = shape.empty() ? 0 : dice.below(6); cuts > 0; --cuts) {
    Box& low = tiles[dice.below(static_cast<int64_t>(tiles.size()))];
    const int64_t d = dice.below(static_cast<int64_t>(shape.size()));
    const int64_t at = dice.below(low.size[d] + 1);
    Box high = low;
    low.size[d] = at;
    high.offset[d] += at;
    high.size[d] -= at;
    tiles.push_back(high);
  }
  return tiles;
}

// One box a rank. covering: the boxes tile the tensor, some of them on two ranks; else they lie anywhere.
inline Layout random_boxes(Dice& dice, const std::vector<int64_t>& shape, bool covering) {
  std::map<int64_t, std::vector<Box>> boxes;
  std::vector<int64_t> ranks(20);
  std::iota(ranks.begin(), ranks.end(), 0);
  shuffle(dice, &ranks);
  for (const Box& tile : random_tiles(dice, shape)) {
    if (covering || dice.below(2)) boxes[ranks.back()] = {tile};
    boxes.try_emplace(ranks.back());
    ranks.pop_back();
    if (dice.below(3) == 0) {
      boxes[ranks.back()] = {tile};
      ranks.pop_back();
    }
  }
  if (!covering)  // and one that overlaps others
    boxes[ranks.back()] = {random_tiles(dice, shape).back()};
  return Layout::from_boxes(shape, boxes);
}

}  // namespace weft::test
