#include "weft/mesh/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "weft/base/error.h"

namespace weft {
namespace {

void check_shape(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (int64_t s : shape)
    if (s < 0 || (s > 0 && __builtin_mul_overflow(n, s, &n)) || n > int64_t{1} << 62)
      throw ValueError(fmt::format("{} is no shape of a tensor", shape_text(shape)));
}

int64_t length(const std::vector<Interval>& intervals) {
  int64_t n = 0;
  for (const Interval& i : intervals) n += i.end - i.begin;
  return n;
}

// The part of `intervals` at [begin, end) of their concatenation, appended to `out`; neighbours are joined.
void append_range(const std::vector<Interval>& intervals, int64_t begin, int64_t end, std::vector<Interval>* out) {
  int64_t start = 0;  // of the interval, in the concatenation
  for (const Interval& i : intervals) {
    const int64_t size = i.end - i.begin;
    const int64_t from = std::max(begin, start), to = std::min(end, start + size);
    if (from < to) {
      const Interval piece{i.begin + from - start, i.begin + to - start};
      if (!out->empty() && out->back().end == piece.begin)
        out->back().end = piece.end;
      else
        out->push_back(piece);
    }
    start += size;
  }
}

// The share of rank `c` of `n`.
std::vector<Interval> apply(const Cut& cut, int64_t c, int64_t n, const std::vector<Interval>& whole) {
  const int64_t segment = length(whole) / cut.parts;
  int64_t begin, end;
  if (cut.boundaries.empty()) {
    const int64_t chunk = segment / n + (segment % n != 0);
    begin = std::min(segment, c * chunk);
    end = std::min(segment, begin + chunk);
  } else {
    begin = cut.boundaries[c];
    end = cut.boundaries[c + 1];
  }
  std::vector<Interval> out;
  for (int64_t p = 0; p < cut.parts; ++p) append_range(whole, p * segment + begin, p * segment + end, &out);
  return out;
}

bool commute(ReduceOp a, ReduceOp b) {
  const auto linear = [](ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAvg; };
  return a == b || (linear(a) && linear(b));
}

}  // namespace

Layout Layout::replicated(std::vector<int64_t> shape, DeviceMesh mesh) {
  check_shape(shape);
  Layout out;
  out.shape_ = std::move(shape);
  out.mesh_ = std::move(mesh);
  return out;
}

Layout Layout::from_boxes(std::vector<int64_t> shape, const std::map<int64_t, std::vector<Box>>& boxes) {
  check_shape(shape);
  if (boxes.empty()) throw ValueError("a layout of boxes has no rank");
  Layout out;
  std::vector<int64_t> ranks;
  for (const auto& entry : boxes) {
    const int64_t rank = entry.first;
    ranks.push_back(rank);
    std::vector<LocalBox>& kept = out.boxes_[rank];
    int64_t rows = 0;
    for (const Box& box : entry.second) {
      const auto fail = [&](const std::string& what) {
        throw ValueError(fmt::format("box {} of rank {} in {}: {}", box_text(box), rank, shape_text(shape), what));
      };
      if (box.offset.size() != shape.size() || box.size.size() != shape.size()) fail("another number of dims");
      for (size_t d = 0; d < shape.size(); ++d)
        if (box.offset[d] < 0 || box.size[d] < 0 || box.offset[d] > shape[d] || box.size[d] > shape[d] - box.offset[d])
          fail("outside the tensor");
      if (box.numel() == 0) continue;
      for (const LocalBox& other : kept) {
        if (intersect(other.box, box).numel() > 0) fail("overlaps " + box_text(other.box));
        if (!std::equal(box.size.begin() + 1, box.size.end(), other.box.size.begin() + 1))
          fail("cannot lie behind " + box_text(other.box));
      }
      LocalBox local{box, std::vector<int64_t>(shape.size(), 0)};
      if (!shape.empty()) {
        local.local_offset[0] = rows;
        rows += box.size[0];
      }
      kept.push_back(std::move(local));
    }
  }
  const int64_t n = static_cast<int64_t>(ranks.size());
  out.shape_ = std::move(shape);
  out.mesh_ = DeviceMesh({"holder"}, {n}, std::move(ranks));
  out.made_of_boxes_ = true;
  return out;
}

bool Layout::cuts_axis(const std::string& axis) const {
  return std::any_of(cuts_.begin(), cuts_.end(), [&](const Cut& c) { return c.axis == axis; });
}

bool Layout::partial_axis(const std::string& axis) const {
  return std::any_of(partials_.begin(), partials_.end(), [&](const Partial& p) { return p.axis == axis; });
}

void Layout::check_axis(const std::string& axis, const std::string& use) const {
  const auto fail = [&](const std::string& what) { throw ValueError(fmt::format("{}, {}: {}", to_string(), use, what)); };
  if (made_of_boxes_) fail("a layout made of boxes is as it is");
  if (!mesh_.has(axis)) fail("the mesh has no such axis");
  if (cuts_axis(axis)) fail("the axis cuts already");
  if (partial_axis(axis)) fail("the axis is partial already");
}

Layout Layout::with_cut(Cut cut) const {
  const std::string use = fmt::format("cut of dim {} by {}", cut.dim, cut.axis);
  check_axis(cut.axis, use);
  const auto fail = [&](const std::string& what) { throw ValueError(fmt::format("{}, {}: {}", to_string(), use, what)); };
  if (cut.dim < 0 || cut.dim >= dims()) fail("there is no such dim");
  if (cut.parts < 1) fail(fmt::format("{} parts", cut.parts));
  if (cut.parts > 1 || !cut.boundaries.empty()) {
    // The length may differ from rank to rank where the dim is cut already.
    const bool nested = std::any_of(cuts_.begin(), cuts_.end(), [&](const Cut& c) { return c.dim == cut.dim; });
    std::set<int64_t> lengths{nested ? local_length(mesh_.ranks()[0], cut.dim) : shape_[cut.dim]};
    if (nested)
      for (int64_t rank : mesh_.ranks()) lengths.insert(local_length(rank, cut.dim));
    const std::vector<int64_t>& b = cut.boundaries;
    for (int64_t n : lengths) {
      if (n % cut.parts != 0) fail(fmt::format("a length of {} is no {} equal parts", n, cut.parts));
      if (b.empty()) continue;
      if (static_cast<int64_t>(b.size()) != mesh_.size(cut.axis) + 1)
        fail(fmt::format("{} boundaries for {} ranks; one more than ranks is needed", b.size(), mesh_.size(cut.axis)));
      if (!std::is_sorted(b.begin(), b.end()) || b.front() != 0 || b.back() != n / cut.parts)
        fail(fmt::format("boundaries {} do not ascend from 0 to {}", shape_text(b), n / cut.parts));
    }
  }
  Layout out = *this;
  out.cuts_.push_back(std::move(cut));
  return out;
}

Layout Layout::with_partial(const std::string& axis, ReduceOp op) const {
  const std::string use = fmt::format("partial({}) on {}", weft::to_string(op), axis);
  check_axis(axis, use);
  for (const Partial& p : partials_)
    if (!commute(p.op, op))
      throw ValueError(
          fmt::format("{}, {}: does not commute with the {} on {}", to_string(), use, weft::to_string(p.op), p.axis));
  Layout out = *this;
  out.partials_.push_back({axis, op});
  return out;
}

Layout Layout::without_partials() const {
  Layout out = *this;
  out.partials_.clear();
  return out;
}

std::vector<Interval> Layout::intervals(int64_t rank, int64_t dim) const {
  if (dim < 0 || dim >= dims()) throw ValueError(fmt::format("{} has no dim {}", to_string(), dim));
  if (!mesh_.contains(rank)) return {};
  if (made_of_boxes_) {
    const std::vector<LocalBox>& held = boxes_.at(rank);
    if (held.size() > 1) throw ValueError(fmt::format("rank {} has {} boxes, not intervals of each dim", rank, held.size()));
    if (held.empty()) return {};
    const Box& box = held[0].box;
    return {{box.offset[dim], box.offset[dim] + box.size[dim]}};
  }
  std::vector<Interval> out;
  if (shape_[dim] > 0) out.push_back({0, shape_[dim]});
  for (const Cut& cut : cuts_)
    if (cut.dim == dim) out = apply(cut, mesh_.coordinate(rank, cut.axis), mesh_.size(cut.axis), out);
  return out;
}

int64_t Layout::local_length(int64_t rank, int64_t dim) const { return length(intervals(rank, dim)); }

std::vector<int64_t> Layout::local_shape(int64_t rank) const {
  std::vector<int64_t> out(shape_.size(), 0);
  if (!mesh_.contains(rank)) return out;
  if (made_of_boxes_) {
    for (const LocalBox& b : boxes_.at(rank))
      for (int64_t d = 0; d < dims(); ++d) out[d] = d == 0 ? out[0] + b.box.size[0] : b.box.size[d];
    return out;
  }
  for (int64_t d = 0; d < dims(); ++d) out[d] = local_length(rank, d);
  return out;
}

std::vector<LocalBox> Layout::boxes(int64_t rank) const {
  if (!mesh_.contains(rank)) return {};
  if (made_of_boxes_) return boxes_.at(rank);
  std::vector<LocalBox> out(1);
  for (int64_t d = 0; d < dims(); ++d) {
    std::vector<LocalBox> longer;
    const std::vector<Interval> along = intervals(rank, d);
    for (const LocalBox& prefix : out) {
      int64_t local = 0;
      for (const Interval& i : along) {
        LocalBox b = prefix;
        b.box.offset.push_back(i.begin);
        b.box.size.push_back(i.end - i.begin);
        b.local_offset.push_back(local);
        local += i.end - i.begin;
        longer.push_back(std::move(b));
      }
    }
    out = std::move(longer);
  }
  return out;
}

int64_t Layout::numel(int64_t rank) const {
  int64_t n = 0;
  for (const LocalBox& b : boxes(rank)) n += b.box.numel();
  return n;
}

std::vector<HolderSet> Layout::holder_sets() const {
  std::vector<int64_t> ranks = mesh_.ranks();
  std::sort(ranks.begin(), ranks.end());
  std::map<std::vector<int64_t>, size_t>
      set_of;  // by what decides the boxes: coordinates along axes that cut, or the boxes themselves
  std::vector<HolderSet> out;
  for (int64_t rank : ranks) {
    std::vector<int64_t> key;
    if (made_of_boxes_) {
      for (const LocalBox& b : boxes_.at(rank))
        for (const std::vector<int64_t>* v : {&b.box.offset, &b.box.size, &b.local_offset})
          key.insert(key.end(), v->begin(), v->end());
      if (boxes_.at(rank).empty()) key = {-1};  // not the key of a 0-d box
    } else {
      for (const Cut& cut : cuts_) key.push_back(mesh_.coordinate(rank, cut.axis));
    }
    const auto [at, is_new] = set_of.try_emplace(std::move(key), out.size());
    if (is_new) out.push_back({{}, boxes(rank)});
    out[at->second].ranks.push_back(rank);
  }
  std::erase_if(out, [](const HolderSet& s) { return s.boxes.empty(); });
  return out;
}

std::string Layout::to_string() const {
  std::string out = shape_text(shape_);
  if (made_of_boxes_) {
    for (const auto& [rank, list] : boxes_) {
      out += fmt::format("{}rank {}", rank == boxes_.begin()->first ? ": " : ", ", rank);
      for (const LocalBox& b : list) out += " " + box_text(b.box);
    }
    return out;
  }
  out += " on " + mesh_.to_string();
  std::string separator = ": ";
  for (const Cut& cut : cuts_) {
    out += fmt::format("{}{} cuts dim {}", std::exchange(separator, ", "), cut.axis, cut.dim);
    if (cut.parts > 1) out += fmt::format(" in {} parts", cut.parts);
    if (!cut.boundaries.empty()) out += " at " + shape_text(cut.boundaries);
  }
  for (const Partial& p : partials_)
    out += fmt::format("{}{} is partial({})", std::exchange(separator, ", "), p.axis, weft::to_string(p.op));
  return out;
}

}  // namespace weft
