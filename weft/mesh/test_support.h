#pragma once
// The tests' own idea of a layout: lists of elements, rank by rank. Slow, and written without the code under test: mesh
// coordinates by search and division, chunks by handing out elements one by one.

#include <gmock/gmock.h>

#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/mesh/layout.h"
#include "weft/mesh/plan.h"

namespace weft::test {

template <typename F>
void expect_value_error(const F& f, const std::string& part) {
  EXPECT_THAT(f, testing::ThrowsMessage<ValueError>(testing::HasSubstr(part)));
}

inline int64_t coordinate_of(const DeviceMesh& mesh, int64_t rank, const std::string& axis) {
  int64_t at = 0;
  while (mesh.ranks()[at] != rank) ++at;
  for (size_t i = mesh.axes().size(); i-- > 0;) {
    if (mesh.axes()[i] == axis) return at % mesh.sizes()[i];
    at /= mesh.sizes()[i];
  }
  throw InternalError("no axis");
}

// The global index of each local index along one dim.
inline std::vector<int64_t> owned_along(const Layout& layout, int64_t rank, int64_t dim) {
  std::vector<int64_t> own(layout.shape()[dim]);
  std::iota(own.begin(), own.end(), 0);
  for (const Cut& cut : layout.cuts()) {
    if (cut.dim != dim) continue;
    const int64_t c = coordinate_of(layout.mesh(), rank, cut.axis), n = layout.mesh().size(cut.axis);
    const int64_t segment = static_cast<int64_t>(own.size()) / cut.parts;
    std::vector<int64_t> next;
    for (int64_t i = 0; i < static_cast<int64_t>(own.size()); ++i) {
      const int64_t within = i % segment;
      int64_t owner = 0;
      if (cut.boundaries.empty()) {
        const int64_t chunk = (segment + n - 1) / n;
        for (int64_t e = 0, filled = 0; e < within; ++e)
          if (++filled == chunk) {
            filled = 0;
            ++owner;
          }
      } else {
        while (within >= cut.boundaries[owner + 1]) ++owner;
      }
      if (owner == c) next.push_back(own[i]);
    }
    own = next;
  }
  return own;
}

inline int64_t product(const std::vector<int64_t>& sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

// Calls visit(index) for each index of a shape, row-major.
template <typename Visit>
void each_index(const std::vector<int64_t>& shape, const Visit& visit) {
  if (product(shape) == 0) return;
  std::vector<int64_t> index(shape.size(), 0);
  for (;;) {
    visit(index);
    size_t d = shape.size();
    while (d > 0 && ++index[d - 1] == shape[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

inline int64_t flat(const std::vector<int64_t>& index, const std::vector<int64_t>& shape) {
  int64_t out = 0;
  for (size_t d = 0; d < shape.size(); ++d) out = out * shape[d] + index[d];
  return out;
}

// The flat index of (box offset + index) in a tensor of `shape`, -1 outside.
inline int64_t flat_at(const std::vector<int64_t>& offset, const std::vector<int64_t>& index, const std::vector<int64_t>& shape) {
  int64_t out = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t i = offset[d] + index[d];
    if (i < 0 || i >= shape[d]) return -1;
    out = out * shape[d] + i;
  }
  return out;
}

struct OwnerMap {
  struct Rank {
    bool in_mesh = false;
    std::vector<int64_t> shape;   // local
    std::vector<int64_t> global;  // of each local element (row-major), its flat global index
    std::vector<char> holds;      // by flat global index
  };
  std::vector<int64_t> shape;
  std::vector<Rank> ranks;  // by rank, as far as the highest
  const Rank& at(int64_t rank) const {
    static const Rank nothing{};
    return rank < static_cast<int64_t>(ranks.size()) ? ranks[rank] : nothing;
  }
};

inline OwnerMap owner_map(const Layout& layout) {
  OwnerMap map;
  map.shape = layout.shape();
  for (int64_t r : layout.mesh().ranks()) {
    if (r >= static_cast<int64_t>(map.ranks.size())) map.ranks.resize(r + 1);
    OwnerMap::Rank& rank = map.ranks[r];
    rank.in_mesh = true;
    if (layout.made_of_boxes()) {  // boxes behind one another along dim 0 are boxes behind one another in memory
      rank.shape.assign(layout.shape().size(), 0);
      for (const LocalBox& b : layout.boxes(r)) {
        for (size_t d = 0; d < rank.shape.size(); ++d) rank.shape[d] = d ? b.box.size[d] : rank.shape[0] + b.box.size[0];
        each_index(b.box.size,
                   [&](const std::vector<int64_t>& i) { rank.global.push_back(flat_at(b.box.offset, i, map.shape)); });
      }
    } else {
      std::vector<std::vector<int64_t>> along;
      for (int64_t d = 0; d < layout.dims(); ++d) {
        along.push_back(owned_along(layout, r, d));
        rank.shape.push_back(static_cast<int64_t>(along[d].size()));
      }
      each_index(rank.shape, [&](const std::vector<int64_t>& index) {
        std::vector<int64_t> global = index;
        for (size_t d = 0; d < global.size(); ++d) global[d] = along[d][index[d]];
        rank.global.push_back(flat(global, map.shape));
      });
    }
    rank.holds.assign(product(map.shape), 0);
    for (int64_t g : rank.global) rank.holds[g] = 1;
  }
  return map;
}

// "" or what is wrong: every element of every destination arrives exactly once, from a rank that holds it and from the place
// where it holds it, to the place where it belongs; from itself where it has it; in order.
inline std::string wrong_with_plan(const OwnerMap& from, const OwnerMap& to, const std::vector<Transfer>& plan) {
  const auto say = [](const Transfer& t, const char* what) {
    return fmt::format("{} -> {} {}: {}", t.source, t.destination, box_text(t.box), what);
  };
  std::vector<std::vector<int>> arrived(to.ranks.size());
  for (size_t r = 0; r < arrived.size(); ++r) arrived[r].assign(to.ranks[r].global.size(), 0);
  const Transfer* last = nullptr;
  for (const Transfer& t : plan) {
    if (last && std::tie(last->source, last->destination, last->box.offset) >= std::tie(t.source, t.destination, t.box.offset))
      return say(t, "not in order");
    last = &t;
    const OwnerMap::Rank &source = from.at(t.source), &destination = to.at(t.destination), &before = from.at(t.destination);
    if (!source.in_mesh || !destination.in_mesh || t.box.numel() == 0) return say(t, "no such rank, or nothing");
    std::string wrong;
    each_index(t.box.size, [&](const std::vector<int64_t>& i) {
      const int64_t g = flat_at(t.box.offset, i, from.shape);
      const int64_t s = flat_at(t.source_offset, i, source.shape), d = flat_at(t.destination_offset, i, destination.shape);
      if (g < 0 || s < 0 || d < 0)
        wrong = say(t, "outside");
      else if (source.global[s] != g)
        wrong = say(t, "the source holds another element there");
      else if (destination.global[d] != g)
        wrong = say(t, "another element belongs there");
      else if (t.source != t.destination && before.in_mesh && before.holds[g])
        wrong = say(t, "the destination has it already");
      else if (++arrived[t.destination][d] > 1)
        wrong = say(t, "arrives again");
    });
    if (!wrong.empty()) return wrong;
  }
  for (size_t r = 0; r < arrived.size(); ++r)
    for (int n : arrived[r])
      if (n != 1) return fmt::format("rank {} misses an element", r);
  return "";
}

// Among ranks that hold the same boxes, what they send differs by one largest transfer at most.
inline std::string wrong_with_balance(const Layout& from, const std::vector<Transfer>& plan) {
  std::map<int64_t, int64_t> sent = bytes_sent(plan, 1);
  std::map<int64_t, int64_t> largest;  // by sender
  for (const Transfer& t : plan)
    if (t.source != t.destination) largest[t.source] = std::max(largest[t.source], t.box.numel());
  for (const HolderSet& set : from.holder_sets()) {
    int64_t least = INT64_MAX, most = 0, box = 0;
    for (int64_t r : set.ranks) {
      least = std::min(least, sent[r]);
      most = std::max(most, sent[r]);
      box = std::max(box, largest[r]);
    }
    if (most - least > box)
      return fmt::format("rank {} and its copies send {} to {}, largest box {}", set.ranks[0], least, most, box);
  }
  return "";
}

// Every way in which the axes of a mesh can cut dims of a tensor, the order of cuts of one dim included.
inline std::vector<Layout> all_cuts(const std::vector<int64_t>& shape, const DeviceMesh& mesh) {
  std::vector<Layout> out{Layout::replicated(shape, mesh)};
  const int64_t dims = static_cast<int64_t>(shape.size());
  for (size_t done = 0; done < out.size(); ++done)
    for (const std::string& axis : mesh.axes()) {
      if (out[done].cuts_axis(axis)) continue;
      for (int64_t d = 0; d < dims; ++d) {
        // Only the order within a dim matters: cuts of other dims come in the order of the dims.
        if (!out[done].cuts().empty() && out[done].cuts().back().dim > d) continue;
        out.push_back(out[done].with_cut({.axis = axis, .dim = d}));
      }
    }
  return out;
}

// All meshes of two axes (a, b) with up to `world` ranks.
inline std::vector<DeviceMesh> two_axis_meshes(int64_t world) {
  std::vector<DeviceMesh> out;
  for (int64_t a = 1; a <= world; ++a)
    for (int64_t b = 1; a * b <= world; ++b) out.emplace_back(std::vector<std::string>{"a", "b"}, std::vector<int64_t>{a, b});
  return out;
}

// A layout, with what the checks need of it.
struct Case {
  Layout layout;
  OwnerMap map;
};

inline std::vector<Case> all_cases(const std::vector<int64_t>& shape, const std::vector<DeviceMesh>& meshes) {
  std::vector<Case> out;
  for (const DeviceMesh& mesh : meshes)
    for (Layout& layout : all_cuts(shape, mesh)) {
      OwnerMap map = owner_map(layout);
      out.push_back({std::move(layout), std::move(map)});
    }
  return out;
}

// "" or the first wrong plan between two layouts.
inline std::string wrong_with_pair(const Case& from, const Case& to) {
  const std::vector<Transfer> plan = plan_copy(from.layout, to.layout);
  std::string wrong = wrong_with_plan(from.map, to.map, plan);
  if (wrong.empty()) wrong = wrong_with_balance(from.layout, plan);
  if (!wrong.empty()) wrong = from.layout.to_string() + " -> " + to.layout.to_string() + ": " + wrong;
  return wrong;
}

}  // namespace weft::test
