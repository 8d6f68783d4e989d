#include "weft/train/plan_refit.h"

#include <algorithm>
#include <numeric>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr int64_t kListed = 200'000;  // transfers that are listed one by one
constexpr int64_t kBlocks = 16;       // rows and columns of the picture

std::vector<int> numbered(int64_t n, int64_t first) {
  std::vector<int> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), static_cast<int>(first));
  return out;
}

int64_t most(const std::map<int64_t, int64_t>& by_rank) {
  int64_t out = 0;
  for (const auto& [rank, bytes] : by_rank) out = std::max(out, bytes);
  return out;
}

}  // namespace

int64_t about_transfers(const PlannedRefitTensors& kinds) {
  int64_t n = 0;
  for (size_t i = 0; i < kinds.tensors.size(); ++i) {
    int64_t receivers = 0, pieces = 0, sources = 0;
    for (const HolderSet& s : kinds.tensors[i].to)
      receivers += static_cast<int64_t>(s.ranks.size()), pieces += static_cast<int64_t>(s.boxes.size());
    for (const HolderSet& s : kinds.tensors[i].from) sources += static_cast<int64_t>(s.boxes.size());
    n += kinds.counts[i] * receivers * std::max<int64_t>(1, sources / std::max<int64_t>(1, pieces));
  }
  return n;
}

PlannedRefitTensors planned_refit_tensors(const ParameterTable& table, const ParallelDims& train, const ParallelDims& rollout,
                                          DType rollout_dtype, bool apart, bool by_kind, DType param_dtype) {
  return planned_refit_tensors(table, train, numbered(train.world(), 0), rollout,
                               numbered(rollout.world(), apart ? train.world() : 0), rollout_dtype, by_kind, param_dtype);
}

PlannedRefitTensors planned_refit_tensors(const ParameterTable& table, const ParallelDims& train,
                                          std::span<const int> train_ranks, const ParallelDims& rollout,
                                          std::span<const int> rollout_ranks, DType rollout_dtype, bool by_kind, DType param_dtype) {
  const WeightKinds kinds = kinds_of(table);
  PlannedRefitTensors by, out;
  for (const WeightKind& k : kinds.kinds) {
    RefitTensor t{k.name, k.shape, k.rollout_type(rollout_dtype, param_dtype), {}, {}};
    t.from = holder_sets_of(place_parameter(table.plan, train, k.name, k.shape).layout, train_ranks);
    t.to = holder_sets_of(place_parameter(table.plan, rollout, k.name, k.shape).computed, rollout_ranks);
    by.tensors.push_back(std::move(t));
    by.counts.push_back(k.count);
  }
  if (by_kind) return by;
  std::vector<size_t> next(kinds.groups.size(), 0);
  for (const TableRow& row : table.rows) {
    const size_t group = static_cast<size_t>(row.layer + 1);
    out.tensors.push_back(by.tensors[kinds.groups[group][next[group]++]]);
    out.tensors.back().name = row.name;
    out.counts.push_back(1);
  }
  return out;
}

RefitSummary refit_summary(const ParameterTable& table, const ParallelDims& train, const ParallelDims& rollout,
                           const PlanOptions& options) {
  RefitSummary s;
  s.from_block = (train.world() + kBlocks - 1) / kBlocks;
  s.to_block = (rollout.world() + kBlocks - 1) / kBlocks;
  const int64_t first = options.apart ? train.world() : 0;
  s.flows.assign(static_cast<size_t>((train.world() + s.from_block - 1) / s.from_block),
                 std::vector<double>(static_cast<size_t>((rollout.world() + s.to_block - 1) / s.to_block)));
  const auto flow = [&](int64_t from, int64_t to, double bytes) {
    s.flows[static_cast<size_t>(from / s.from_block)][static_cast<size_t>((to - first) / s.to_block)] += bytes;
  };
  const auto planned = [&](bool by_kind) {
    return planned_refit_tensors(table, train, rollout, options.rollout_dtype, options.apart, by_kind, options.param_dtype);
  };
  const PlannedRefitTensors kinds = planned(true);
  s.listed = about_transfers(kinds) <= kListed;
  s.load = refit_load(kinds.tensors, kinds.counts, s.listed ? RefitFlow() : flow);
  const int64_t fair_sent = most(s.load.sent);
  if (s.listed) {
    const PlannedRefitTensors all = planned(false);
    const RefitPlan plan = plan_refit(all.tensors);
    for (size_t i = 0; i < plan.transfers.size(); ++i)
      for (const Transfer& t : plan.transfers[i])
        if (t.source != t.destination)
          flow(t.source, t.destination, static_cast<double>(t.box.numel() * dtype_bytes(all.tensors[i].dtype)));
    WEFT_CHECK(plan.received == s.load.received, "two plans of one refit receive differently");
    s.load.sent = plan.sent;
  }
  s.max_needed = most(s.load.needed), s.max_received = most(s.load.received), s.max_sent = most(s.load.sent);
  for (const auto& [rank, bytes] : s.load.received) s.total_received += bytes;
  const double bandwidth = options.bandwidth("refit");
  s.receive_seconds = static_cast<double>(s.max_received) / bandwidth;
  s.send_seconds = static_cast<double>(s.max_sent) / bandwidth;
  s.bound_seconds = std::max(s.receive_seconds, static_cast<double>(fair_sent) / bandwidth);
  // Every rank that holds a part sends what is unique of it, as evenly as can be.
  s.forward_seconds = static_cast<double>(s.load.unique) / static_cast<double>(train.world()) / bandwidth;
  return s;
}

}  // namespace weft
