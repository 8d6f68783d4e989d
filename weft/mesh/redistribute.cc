#include "weft/mesh/redistribute.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>

#include "weft/base/error.h"

namespace weft {
namespace {

std::vector<Partial> partials_only_in(const Layout& a, const Layout& b) {
  std::vector<Partial> out;
  for (const std::string& axis : a.mesh().axes())
    for (const Partial& p : a.partials())
      if (p.axis == axis && !b.partial_axis(axis)) out.push_back(p);
  return out;
}

// The number of a rank's coordinates along `axes`, last fastest.
int64_t flat_coordinate(const DeviceMesh& mesh, int64_t rank, const std::vector<std::string>& axes) {
  int64_t out = 0;
  for (const std::string& axis : axes) out = out * mesh.size(axis) + mesh.coordinate(rank, axis);
  return out;
}

std::vector<HolderSet> where(const std::vector<HolderSet>& sets, const std::function<bool(int64_t)>& keep) {
  std::vector<HolderSet> out;
  for (const HolderSet& set : sets) {
    HolderSet kept{{}, set.boxes};
    std::copy_if(set.ranks.begin(), set.ranks.end(), std::back_inserter(kept.ranks), keep);
    if (!kept.ranks.empty()) out.push_back(std::move(kept));
  }
  return out;
}

// One stage: the partial axes that `to` does not have are reduced, those that only `to` has get the value at coordinate 0, and
// along those that both have every coordinate is a tensor of its own.
Stage make_stage(const Layout& from, const Layout& to) {
  const DeviceMesh& mesh = from.mesh();
  Stage stage{.from = from, .to = to, .transfers = {}, .fill = {}};
  std::vector<std::string> reduced, kept;
  for (const Partial& p : partials_only_in(from, to)) {
    reduced.push_back(p.axis);
    stage.contributions *= mesh.size(p.axis);
    if (p.op == ReduceOp::kAvg) stage.divisor *= mesh.size(p.axis);
    stage.op = p.op == ReduceOp::kAvg ? ReduceOp::kSum : p.op;
  }
  int64_t tensors = 1;
  for (const Partial& p : from.partials())
    if (to.partial_axis(p.axis)) {
      kept.push_back(p.axis);
      tensors *= mesh.size(p.axis);
    }
  std::vector<std::string> from_identity;  // axes along which only coordinate 0 keeps the value
  for (const Partial& p : partials_only_in(to, from))
    if (p.op != ReduceOp::kAvg) {
      from_identity.push_back(p.axis);
      stage.fill = p.op;
    }

  const std::vector<HolderSet> sources = from.holder_sets(), destinations = to.holder_sets();
  SendLoad load;
  for (int64_t tensor = 0; tensor < tensors; ++tensor) {
    const auto of_tensor = [&](int64_t rank) { return flat_coordinate(mesh, rank, kept) == tensor; };
    const std::vector<HolderSet> takers =
        where(destinations, [&](int64_t rank) { return of_tensor(rank) && flat_coordinate(mesh, rank, from_identity) == 0; });
    for (int64_t k = 0; k < stage.contributions; ++k) {
      const std::vector<HolderSet> givers =
          where(sources, [&](int64_t rank) { return of_tensor(rank) && flat_coordinate(mesh, rank, reduced) == k; });
      for (Transfer& t : plan_copy(givers, takers, from.dims(), &load)) stage.transfers.push_back({std::move(t), k});
    }
  }
  std::sort(stage.transfers.begin(), stage.transfers.end(), [](const StageTransfer& a, const StageTransfer& b) {
    return std::tie(a.transfer.source, a.transfer.destination, a.contribution, a.transfer.box.offset) <
           std::tie(b.transfer.source, b.transfer.destination, b.contribution, b.transfer.box.offset);
  });
  return stage;
}

// Where reduced values land: each rank's share of `to`, cut further so that no rank reduces what another one reduces too. Axes
// that cut in `from` only go on cutting, axes that are reduced into copies cut the first dim that they divide, else the longest.
Layout reduced_layout(const Layout& from, const Layout& to) {
  const DeviceMesh& mesh = from.mesh();
  Layout out = Layout::replicated(from.shape(), mesh);
  for (const Cut& cut : to.cuts()) out = out.with_cut(cut);
  for (const Cut& cut : from.cuts()) {
    if (to.cuts_axis(cut.axis)) continue;
    // Its parts and boundaries fit only what it has cut before.
    const bool as_before = std::none_of(to.cuts().begin(), to.cuts().end(), [&](const Cut& c) { return c.dim == cut.dim; }) &&
                           std::none_of(from.cuts().begin(), from.cuts().end(),
                                        [&](const Cut& c) { return c.dim == cut.dim && to.cuts_axis(c.axis); });
    out = out.with_cut(as_before ? cut : Cut{.axis = cut.axis, .dim = cut.dim});
  }
  for (const Partial& p : partials_only_in(from, to)) {
    const std::vector<int64_t> local = out.local_shape(mesh.ranks()[0]);
    if (to.cuts_axis(p.axis) || local.empty()) continue;
    const int64_t n = mesh.size(p.axis);
    auto dim = std::find_if(local.begin(), local.end(), [n](int64_t length) { return length % n == 0; });
    if (dim == local.end()) dim = std::max_element(local.begin(), local.end());
    out = out.with_cut({.axis = p.axis, .dim = dim - local.begin()});
  }
  for (const Partial& p : to.partials())
    if (from.partial_axis(p.axis)) out = out.with_partial(p.axis, p.op);
  return out;
}

}  // namespace

std::vector<Stage> plan_redistribute(const Layout& from, const Layout& to) {
  const auto fail = [&](const std::string& what) {
    throw ValueError(fmt::format("from {} to {}: {}", from.to_string(), to.to_string(), what));
  };
  if (from.shape() != to.shape()) fail("the shapes differ");
  if (from.mesh() != to.mesh()) fail("the meshes differ; plan_copy goes from mesh to mesh");
  if (from.made_of_boxes() || to.made_of_boxes()) fail("a layout made of boxes has no axes; plan_copy moves it");
  for (const Partial& p : to.partials()) {
    if (from.cuts_axis(p.axis)) fail(fmt::format("axis {} cuts; shards cannot become terms of a reduction", p.axis));
    for (const Partial& q : from.partials())
      if (p.axis == q.axis && p.op != q.op) fail(fmt::format("axis {} changes its reduction", p.axis));
  }
  if (from == to) return {};
  if (partials_only_in(from, to).empty()) return {make_stage(from, to)};
  const Layout reduced = reduced_layout(from, to);
  std::vector<Stage> stages{make_stage(from, reduced)};
  if (reduced.cuts() != to.cuts() || !partials_only_in(to, from).empty()) stages.push_back(make_stage(reduced, to));
  stages.back().to = to;
  return stages;
}

}  // namespace weft
