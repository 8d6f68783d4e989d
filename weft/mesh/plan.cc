#include "weft/mesh/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "weft/base/error.h"

namespace weft {
namespace {

// A box of a holder set, among those of all sets.
struct Piece {
  const HolderSet* set;
  const LocalBox* local;
};

std::vector<Piece> pieces_of(const std::vector<HolderSet>& sets) {
  std::vector<Piece> out;
  for (const HolderSet& set : sets)
    for (const LocalBox& local : set.boxes) out.push_back({&set, &local});
  return out;
}

// Finds the pieces that meet a box: sorted by their start along the dim with the most different starts, so that a look at a few
// neighbours replaces one at all.
class Index {
 public:
  Index(std::vector<Piece> pieces, int64_t dims) : pieces_(std::move(pieces)) {
    size_t most = 0;
    for (int64_t d = 0; d < dims; ++d) {
      std::set<int64_t> starts;
      for (const Piece& p : pieces_) starts.insert(p.local->box.offset[d]);
      if (starts.size() > most) {
        most = starts.size();
        dim_ = d;
      }
    }
    if (dims == 0) return;
    std::stable_sort(pieces_.begin(), pieces_.end(), [&](const Piece& a, const Piece& b) { return start(a) < start(b); });
    for (const Piece& p : pieces_) longest_ = std::max(longest_, p.local->box.size[dim_]);
  }

  // Calls visit(piece) for each piece that may meet the box.
  template <typename Visit>
  void candidates(const Box& box, const Visit& visit) const {
    if (box.offset.empty()) {
      for (const Piece& p : pieces_) visit(p);
      return;
    }
    const int64_t begin = box.offset[dim_], end = begin + box.size[dim_];
    // Whatever starts `longest_` before the box ends before it.
    auto at = std::lower_bound(pieces_.begin(), pieces_.end(), begin - longest_ + 1,
                               [&](const Piece& p, int64_t value) { return start(p) < value; });
    for (; at != pieces_.end() && start(*at) < end; ++at) visit(*at);
  }

 private:
  int64_t start(const Piece& p) const { return p.local->box.offset[dim_]; }

  std::vector<Piece> pieces_;
  int64_t dim_ = 0;
  int64_t longest_ = 0;
};

// Where `box`, a part of local.box, starts in the local tensor.
std::vector<int64_t> offset_within(const LocalBox& local, const Box& box) {
  std::vector<int64_t> out = local.local_offset;
  for (size_t d = 0; d < out.size(); ++d) out[d] += box.offset[d] - local.box.offset[d];
  return out;
}

// One sender for each of the receivers, which are ascending as the holders are: each holder serves as many receivers in a row,
// and those that have sent least serve one more where the numbers do not divide.
std::vector<int64_t> choose_senders(const std::vector<int64_t>& holders, size_t receivers, int64_t elements, SendLoad* load) {
  const size_t each = receivers / holders.size(), extra = receivers % holders.size();
  std::vector<std::pair<int64_t, int64_t>> by_load;  // (sent, rank)
  if (extra > 0) {
    for (int64_t h : holders) by_load.emplace_back((*load)[h], h);
    std::nth_element(by_load.begin(), by_load.begin() + (extra - 1), by_load.end());
    by_load.resize(extra);
  }
  std::vector<int64_t> out;
  for (int64_t h : holders) {
    const bool one_more = std::any_of(by_load.begin(), by_load.end(), [h](const auto& e) { return e.second == h; });
    const size_t serves = each + (one_more ? 1 : 0);
    if (serves == 0) continue;
    out.insert(out.end(), serves, h);
    (*load)[h] += static_cast<int64_t>(serves) * elements;
  }
  return out;
}

// Sources made of boxes are whatever somebody wrote down.
void check_disjoint(const Layout& layout, const std::vector<HolderSet>& sets) {
  const std::vector<Piece> pieces = pieces_of(sets);
  const Index index(pieces, layout.dims());
  for (const Piece& a : pieces)
    index.candidates(a.local->box, [&](const Piece& b) {
      if (a.set != b.set && intersect(a.local->box, b.local->box).numel() > 0)
        throw ValueError(fmt::format("{}: box {} of rank {} overlaps {} of rank {} without being equal to it",
                                     shape_text(layout.shape()), box_text(a.local->box), a.set->ranks[0], box_text(b.local->box),
                                     b.set->ranks[0]));
    });
}

}  // namespace

Transfer part_of(const Transfer& t, const Box& part) {
  Transfer out = t;
  out.box = part;
  for (size_t d = 0; d < part.offset.size(); ++d) {
    out.source_offset[d] += part.offset[d] - t.box.offset[d];
    out.destination_offset[d] += part.offset[d] - t.box.offset[d];
  }
  return out;
}

void sort_transfers(std::vector<Transfer>* plan) {
  std::sort(plan->begin(), plan->end(), [](const Transfer& a, const Transfer& b) {
    return std::tie(a.source, a.destination, a.box.offset) < std::tie(b.source, b.destination, b.box.offset);
  });
}

void for_each_meeting(const std::vector<HolderSet>& from, const std::vector<HolderSet>& to, int64_t dims,
                      const std::function<void(const Meeting&)>& visit) {
  const Index sources(pieces_of(from), dims);
  for (const Piece& need : pieces_of(to)) {
    int64_t found = 0;
    sources.candidates(need.local->box, [&](const Piece& have) {
      Box box = intersect(have.local->box, need.local->box);
      const int64_t elements = box.numel();
      if (elements == 0) return;
      found += elements;
      std::vector<int64_t> source = offset_within(*have.local, box), destination = offset_within(*need.local, box);
      visit({have.set, need.set, std::move(box), std::move(source), std::move(destination)});
    });
    if (found != need.local->box.numel())
      throw ValueError(fmt::format("rank {} needs {} and {} of its {} elements are held by nobody", need.set->ranks[0],
                                   box_text(need.local->box), need.local->box.numel() - found, need.local->box.numel()));
  }
}

std::vector<Transfer> plan_copy(const std::vector<HolderSet>& from, const std::vector<HolderSet>& to, int64_t dims,
                                SendLoad* load) {
  SendLoad own_load;
  if (!load) load = &own_load;
  std::vector<Transfer> plan;
  std::vector<int64_t> missing;  // ranks of a destination set that do not hold the box themselves
  for_each_meeting(from, to, dims, [&](const Meeting& m) {
    const std::vector<int64_t>& holders = m.have->ranks;
    missing.clear();
    for (int64_t r : m.need->ranks) {
      if (std::binary_search(holders.begin(), holders.end(), r))
        plan.push_back({r, r, m.box, m.source_offset, m.destination_offset});
      else
        missing.push_back(r);
    }
    if (missing.empty()) return;
    const std::vector<int64_t> senders = choose_senders(holders, missing.size(), m.box.numel(), load);
    for (size_t i = 0; i < missing.size(); ++i)
      plan.push_back({senders[i], missing[i], m.box, m.source_offset, m.destination_offset});
  });
  sort_transfers(&plan);
  return plan;
}

std::vector<Transfer> plan_copy(const Layout& from, const Layout& to, SendLoad* load) {
  if (from.shape() != to.shape())
    throw ValueError(
        fmt::format("a tensor of shape {} cannot become one of shape {}", shape_text(from.shape()), shape_text(to.shape())));
  for (const Layout* layout : {&from, &to})
    if (!layout->partials().empty())
      throw ValueError(layout->to_string() + ": partial values cannot be copied, only redistributed");
  const std::vector<HolderSet> sources = from.holder_sets();
  if (from.made_of_boxes()) check_disjoint(from, sources);
  return plan_copy(sources, to.holder_sets(), from.dims(), load);
}

void check_plan(const std::vector<Transfer>& plan, const Layout& from, const Layout& to) {
  const auto owned = [](const Layout& layout) {
    std::map<int64_t, std::vector<LocalBox>> out;
    for (int64_t r : layout.mesh().ranks()) out[r] = layout.boxes(r);
    return out;
  };
  const auto holds = [](const std::vector<LocalBox>& boxes, const Box& box, const std::vector<int64_t>& offset) {
    return std::any_of(boxes.begin(), boxes.end(),
                       [&](const LocalBox& b) { return intersect(b.box, box) == box && offset_within(b, box) == offset; });
  };
  std::map<int64_t, std::vector<LocalBox>> sources = owned(from), destinations = owned(to);
  std::map<int64_t, std::vector<const Box*>> arrived;
  for (const Transfer& t : plan) {
    const std::string text =
        fmt::format("{} of {} from rank {} to rank {}", box_text(t.box), shape_text(from.shape()), t.source, t.destination);
    WEFT_CHECK(t.box.numel() > 0, "{}", text);
    WEFT_CHECK(holds(sources[t.source], t.box, t.source_offset), "{}: not there at the source", text);
    WEFT_CHECK(holds(destinations[t.destination], t.box, t.destination_offset), "{}: does not belong there", text);
    if (t.source != t.destination)
      for (const LocalBox& had : sources[t.destination])
        WEFT_CHECK(intersect(had.box, t.box).numel() == 0, "{}: the destination has it", text);
    for (const Box* other : arrived[t.destination]) WEFT_CHECK(intersect(*other, t.box).numel() == 0, "{}: arrives twice", text);
    arrived[t.destination].push_back(&t.box);
  }
  for (const auto& [rank, boxes] : destinations) {
    int64_t elements = 0;
    for (const Box* box : arrived[rank]) elements += box->numel();
    WEFT_CHECK(elements == to.numel(rank), "rank {} gets {} of {} elements", rank, elements, to.numel(rank));
  }
}

std::map<int64_t, int64_t> bytes_sent(const std::vector<Transfer>& plan, int64_t element_size) {
  std::map<int64_t, int64_t> out;
  for (const Transfer& t : plan)
    if (t.source != t.destination) out[t.source] += t.box.numel() * element_size;
  return out;
}

std::map<int64_t, int64_t> bytes_received(const std::vector<Transfer>& plan, int64_t element_size) {
  std::map<int64_t, int64_t> out;
  for (const Transfer& t : plan)
    if (t.source != t.destination) out[t.destination] += t.box.numel() * element_size;
  return out;
}

int64_t missing_bytes(const Layout& from, const Layout& to, int64_t rank, int64_t element_size) {
  int64_t elements = to.numel(rank);
  const std::vector<LocalBox> held = from.boxes(rank);
  for (const LocalBox& need : to.boxes(rank))
    for (const LocalBox& have : held) elements -= intersect(have.box, need.box).numel();
  return elements * element_size;
}

}  // namespace weft
