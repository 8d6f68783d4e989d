#include "weft/mesh/refit_plan.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft {
namespace {

// A box that `receivers` lack; any of its class' holders may send it.
struct Demand {
  size_t tensor = 0;
  Transfer transfer;  // without source and destination
  std::vector<int64_t> receivers;
  int64_t bytes = 0;  // of one copy
};

// Demands that the same ranks can serve.
struct HolderClass {
  std::vector<int64_t> holders;  // ascending
  std::vector<Demand> demands;
  int64_t bytes = 0;
  std::vector<int64_t> share;  // of each holder, bytes
};

// Gives `bytes` to holders so that the fullest of them has the least: fills the emptiest first.
void pour(HolderClass& c, std::map<int64_t, int64_t>& load) {
  std::vector<std::pair<int64_t, size_t>> by_load;
  for (size_t i = 0; i < c.holders.size(); ++i) by_load.emplace_back(load[c.holders[i]] - c.share[i], i);
  std::sort(by_load.begin(), by_load.end());
  int64_t below = 0, level = 0;  // the k emptiest are filled to `level`
  size_t k = 0;
  do {
    below += by_load[k++].first;
    level = (c.bytes + below) / static_cast<int64_t>(k);
  } while (k < by_load.size() && level > by_load[k].first);
  int64_t rest = c.bytes + below - level * static_cast<int64_t>(k);
  for (size_t i = 0; i < by_load.size(); ++i) {
    const auto [without, h] = by_load[i];
    const int64_t share = i < k ? level - without + (rest-- > 0 ? 1 : 0) : 0;
    load[c.holders[h]] = without + share;
    c.share[h] = share;
  }
}

// Shares of all classes. Each step is the best that one class can do, given the others; the sum of the squared loads falls with
// each, and is least where none moves any more: there the loads are as even as they can be.
void balance(std::vector<HolderClass>& classes) {
  constexpr int kSweeps = 200;
  std::map<int64_t, int64_t> load;
  for (HolderClass& c : classes) {
    c.share.assign(c.holders.size(), 0);
    pour(c, load);
  }
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    bool moved = false;
    for (HolderClass& c : classes) {
      if (c.holders.size() == 1) continue;
      const std::vector<int64_t> before = c.share;
      pour(c, load);
      for (size_t i = 0; i < before.size(); ++i) moved |= std::abs(before[i] - c.share[i]) > 1;
    }
    if (!moved) return;
  }
}

// The part [begin, end) of a transfer along `dim`.
Transfer slice(const Transfer& t, size_t dim, int64_t begin, int64_t end) {
  Transfer out = t;
  out.box.offset[dim] += begin;
  out.box.size[dim] = end - begin;
  out.source_offset[dim] += begin;
  out.destination_offset[dim] += begin;
  return out;
}

// The class' copies laid end to end, cut where its holders' shares end; a cut falls on a whole slice of a box.
void assign(const HolderClass& c, RefitPlan& plan) {
  size_t h = 0;
  int64_t at = 0, end = c.share[0];  // bytes before this copy; where holder h's share ends
  const auto next = [&] { end += c.share[++h]; };
  for (const Demand& d : c.demands)
    for (const int64_t receiver : d.receivers) {
      const std::vector<int64_t>& size = d.transfer.box.size;
      const size_t dim = static_cast<size_t>(std::max_element(size.begin(), size.end()) - size.begin());
      const int64_t slices = size.empty() ? 1 : size[dim], slice_bytes = d.bytes / slices;
      for (int64_t begin = 0; begin < slices;) {
        while (h + 1 < c.holders.size() && end - (at + begin * slice_bytes) <= slice_bytes / 2) next();
        const int64_t fits = (end - at + slice_bytes / 2) / slice_bytes;
        const int64_t stop = h + 1 < c.holders.size() ? std::min(slices, std::max(begin + 1, fits)) : slices;
        Transfer t = begin == 0 && stop == slices ? d.transfer : slice(d.transfer, dim, begin, stop);
        t.source = c.holders[h];
        t.destination = receiver;
        plan.sent[t.source] += (stop - begin) * slice_bytes;
        plan.received[receiver] += (stop - begin) * slice_bytes;
        plan.transfers[d.tensor].push_back(std::move(t));
        begin = stop;
      }
      at += d.bytes;
    }
}

std::vector<HolderClass> balanced(std::map<std::vector<int64_t>, HolderClass>& by_holders) {
  std::vector<HolderClass> classes;
  for (auto& [holders, c] : by_holders) {
    classes.push_back(std::move(c));
    classes.back().holders = holders;
  }
  balance(classes);
  return classes;
}

}  // namespace

RefitPlan plan_refit(std::span<const RefitTensor> tensors) {
  RefitPlan plan;
  plan.transfers.resize(tensors.size());
  std::map<std::vector<int64_t>, HolderClass> by_holders;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const RefitTensor& t = tensors[i];
    try {
      for_each_meeting(t.from, t.to, static_cast<int64_t>(t.shape.size()), [&](const Meeting& m) {
        Demand demand{i, {0, 0, m.box, m.source_offset, m.destination_offset}, {}, m.box.numel() * dtype_bytes(t.dtype)};
        for (int64_t r : m.need->ranks) {
          if (std::binary_search(m.have->ranks.begin(), m.have->ranks.end(), r))
            plan.transfers[i].push_back({r, r, m.box, m.source_offset, m.destination_offset});
          else
            demand.receivers.push_back(r);
        }
        if (demand.receivers.empty()) return;
        plan.largest_box = std::max(plan.largest_box, demand.bytes);
        HolderClass& c = by_holders[m.have->ranks];
        c.bytes += demand.bytes * static_cast<int64_t>(demand.receivers.size());
        c.demands.push_back(std::move(demand));
      });
    } catch (const ValueError& e) {
      throw ValueError(t.name + ": " + e.what());
    }
  }
  for (const HolderClass& c : balanced(by_holders)) assign(c, plan);
  for (std::vector<Transfer>& transfers : plan.transfers) sort_transfers(&transfers);
  return plan;
}

int64_t for_each_in_buckets(std::span<const RefitTensor> tensors, const RefitPlan& plan, int64_t watermark,
                            const RefitBucketVisit& visit) {
  const int64_t limit = watermark / 2;
  std::map<int64_t, int64_t> used;
  int64_t bucket = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    // What is converted begins at an even byte, for bf16 may come behind int8.
    const int64_t item = dtype_bytes(tensors[i].dtype), least = std::max<int64_t>(item, 2);
    if (limit / 2 < least)
      throw ValueError(
          fmt::format("a refit with a watermark of {} bytes cannot send elements of {}: {} at least", watermark, item, 4 * least));
    for (const Transfer& t : plan.transfers[i]) {
      if (t.source == t.destination) continue;
      for_each_part(t.box, limit / 2 / least * (least / item), [&](const Box& box) {
        // What becomes bf16 or int8 may take a converted copy besides.
        const int64_t bytes = box.numel() * item, sent = tensors[i].dtype == DType::kF32 ? bytes : bytes + (bytes + 1) / 2 * 2;
        if (std::max(used[t.source] + sent, used[t.destination] + bytes) > limit) {
          ++bucket;
          used.clear();
        }
        used[t.source] += sent, used[t.destination] += bytes;
        visit(bucket, i, part_of(t, box));
      });
    }
  }
  return bucket + 1;
}

RefitLoad refit_load(std::span<const RefitTensor> tensors, std::span<const int64_t> counts, const RefitFlow& flow) {
  WEFT_CHECK(tensors.size() == counts.size(), "{} counts for {} tensors", counts.size(), tensors.size());
  RefitLoad load;
  std::map<std::vector<int64_t>, HolderClass> by_holders;
  std::map<const HolderClass*, std::vector<int64_t>> receivers;  // bytes by rank
  int64_t ranks = 0;
  for (const RefitTensor& t : tensors)
    for (const HolderSet& set : t.to) ranks = std::max(ranks, set.ranks.back() + 1);
  std::vector<int64_t> needed(static_cast<size_t>(ranks)), received(static_cast<size_t>(ranks));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const RefitTensor& t = tensors[i];
    try {
      for_each_meeting(t.from, t.to, std::ssize(t.shape), [&](const Meeting& m) {
        const int64_t bytes = m.box.numel() * dtype_bytes(t.dtype);
        HolderClass* c = nullptr;
        std::vector<int64_t>* lacking = nullptr;
        for (int64_t r : m.need->ranks) {
          needed[static_cast<size_t>(r)] += bytes * counts[i];
          if (std::binary_search(m.have->ranks.begin(), m.have->ranks.end(), r)) continue;
          if (!c) {
            c = &by_holders[m.have->ranks];
            lacking = &receivers[c];
            lacking->resize(static_cast<size_t>(ranks));
            load.largest_box = std::max(load.largest_box, bytes);
            load.unique += bytes * counts[i];
          }
          c->bytes += bytes * counts[i];
          received[static_cast<size_t>(r)] += bytes * counts[i];
          (*lacking)[static_cast<size_t>(r)] += bytes * counts[i];
        }
      });
    } catch (const ValueError& e) {
      throw ValueError(t.name + ": " + e.what());
    }
  }
  std::map<std::vector<int64_t>, std::vector<int64_t>> by_class;
  for (auto& [holders, c] : by_holders) by_class[holders] = std::move(receivers[&c]);
  for (const HolderClass& c : balanced(by_holders)) {
    for (size_t h = 0; h < c.holders.size(); ++h)
      if (c.share[h] > 0) load.sent[c.holders[h]] += c.share[h];
    if (!flow) continue;
    const std::vector<int64_t>& to = by_class[c.holders];
    for (size_t h = 0; h < c.holders.size(); ++h)
      for (size_t r = 0; r < to.size(); ++r)
        if (to[r] > 0 && c.share[h] > 0)
          flow(c.holders[h], static_cast<int64_t>(r),
               static_cast<double>(to[r]) * static_cast<double>(c.share[h]) / static_cast<double>(c.bytes));
  }
  for (size_t r = 0; r < needed.size(); ++r) {
    if (needed[r] > 0) load.needed[static_cast<int64_t>(r)] = needed[r];
    if (received[r] > 0) load.received[static_cast<int64_t>(r)] = received[r];
  }
  return load;
}

int64_t missing_bytes(const RefitTensor& tensor, int64_t rank) {
  const auto boxes_of = [rank](const std::vector<HolderSet>& sets) {
    std::vector<Box> out;
    for (const HolderSet& set : sets)
      if (std::binary_search(set.ranks.begin(), set.ranks.end(), rank))
        for (const LocalBox& b : set.boxes) out.push_back(b.box);
    return out;
  };
  const std::vector<Box> held = boxes_of(tensor.from);
  int64_t elements = 0;
  for (const Box& need : boxes_of(tensor.to)) {
    elements += need.numel();
    for (const Box& have : held) elements -= intersect(have, need).numel();
  }
  return elements * dtype_bytes(tensor.dtype);
}

std::vector<HolderSet> holder_sets_of(const Layout& layout, std::span<const int> ranks) {
  std::vector<HolderSet> sets = layout.holder_sets();
  for (HolderSet& set : sets) {
    for (int64_t& r : set.ranks) {
      WEFT_CHECK(r < static_cast<int64_t>(ranks.size()), "rank {} of {}", r, ranks.size());
      r = ranks[static_cast<size_t>(r)];
    }
    std::sort(set.ranks.begin(), set.ranks.end());
  }
  return sets;
}

}  // namespace weft
