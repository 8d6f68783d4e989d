#include "weft/train/refit_listing.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "weft/base/error.h"
#include "weft/train/plan_format.h"
#include "weft/train/plan_refit.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kRankRows = 64;               // as `weft plan` lists
constexpr int64_t kMostTransfers = 1'000'000;  // about 200 bytes each

// Of a role's mesh, from its --ranks.
std::vector<int> listed_ranks(const std::string& text, const char* key, const ParallelDims& dims, const std::string& mesh,
                              int64_t first = 0) {
  std::vector<int> ranks(static_cast<size_t>(dims.world()));
  std::iota(ranks.begin(), ranks.end(), static_cast<int>(first));
  if (text.empty()) return ranks;
  ranks = parse_ranks(text, key);
  if (std::ssize(ranks) != dims.world())
    throw UsageError(fmt::format("{} = \"{}\" are {} ranks, the mesh {} has {}", key, text, ranks.size(), mesh, dims.world()));
  return ranks;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string out;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    out += fmt::format("{}{}", out.empty() ? "" : ",", ranks[i]);
    if (end > i + 1) out += fmt::format("-{}", ranks[end - 1]);
    i = end;
  }
  return out;
}

// A tensor whose name was asked for, and how many of its transfers between ranks are shown.
struct ShownTensor {
  size_t tensor = 0;
  int64_t transfers = 0, shown = 0, own_bytes = 0;
};

std::vector<ShownTensor> shown_tensors(const RefitListing& r, const RefitListingView& view) {
  std::vector<ShownTensor> out;
  int64_t left = view.limit > 0 ? view.limit : INT64_MAX;
  for (size_t i = 0; i < r.tensors.size(); ++i) {
    if (!matches(view.name, r.tensors[i].name)) continue;
    ShownTensor t{i, 0, 0, 0};
    for (const Transfer& transfer : r.plan.transfers[i]) {
      if (transfer.source == transfer.destination)
        t.own_bytes += transfer.box.numel() * dtype_bytes(r.tensors[i].dtype);
      else
        ++t.transfers;
    }
    t.shown = std::min(left, t.transfers);
    left -= t.shown;
    out.push_back(t);
  }
  if (out.empty())
    throw UsageError(fmt::format("--name {}: no tensor has such a name; the first of {} is {}", view.name, r.tensors.size(),
                                 r.tensors.empty() ? "" : r.tensors[0].name));
  return out;
}

// fn for each transfer of a tensor that is shown.
template <typename Fn>
void for_each_shown(const RefitListing& r, const ShownTensor& t, const Fn& fn) {
  int64_t left = t.shown;
  for (const Transfer& transfer : r.plan.transfers[t.tensor])
    if (transfer.source != transfer.destination && left-- > 0)
      fn(transfer, transfer.box.numel() * dtype_bytes(r.tensors[t.tensor].dtype));
}

std::string role_of(const RefitListing& r, int rank) {
  const bool trains = std::binary_search(r.train_ranks.begin(), r.train_ranks.end(), rank),
             samples = std::binary_search(r.rollout_ranks.begin(), r.rollout_ranks.end(), rank);
  return trains && samples ? "both" : trains ? "trainer" : samples ? "rollout" : "none";
}

}  // namespace

RefitListing list_refit(const ParameterTable& table, const std::string& train_mesh, const std::string& rollout_mesh,
                        const RefitListingOptions& options) {
  RefitListing r;
  const PlanMeshes meshes = read_plan_meshes(table, train_mesh, rollout_mesh);
  r.train = meshes.train, r.rollout = meshes.rollout, r.options = options;
  r.train_ranks = listed_ranks(options.train_ranks, "--train-ranks", r.train, train_mesh);
  r.rollout_ranks = listed_ranks(options.rollout_ranks, "--rollout-ranks", r.rollout, rollout_mesh, r.train_ranks.back() + 1);
  if (options.rollout_ranks.empty() && r.train.world() == r.rollout.world()) r.rollout_ranks = r.train_ranks;
  std::vector<int> common;
  std::set_intersection(r.train_ranks.begin(), r.train_ranks.end(), r.rollout_ranks.begin(), r.rollout_ranks.end(),
                        std::back_inserter(common));
  if (!common.empty() && r.train_ranks != r.rollout_ranks)
    throw UsageError(
        fmt::format("the trainer has ranks {} and the rollout has ranks {}: two roles have the same ranks, or none in "
                    "common (--train-ranks, --rollout-ranks)",
                    ranks_text(r.train_ranks), ranks_text(r.rollout_ranks)));
  const auto planned = [&](bool by_kind) {
    return planned_refit_tensors(table, r.train, r.train_ranks, r.rollout, r.rollout_ranks, options.rollout_dtype, by_kind);
  };
  const PlannedRefitTensors kinds = planned(true);
  if (const int64_t n = about_transfers(kinds); n > kMostTransfers)
    throw UsageError(fmt::format("about {} transfers are too many to list one by one (at most {}): weft plan shows their sums", n,
                                 kMostTransfers));
  r.tensors = planned(false).tensors;
  r.plan = plan_refit(r.tensors);
  r.buckets = for_each_in_buckets(r.tensors, r.plan, options.watermark, [](int64_t, size_t, const Transfer&) {});

  r.ranks.resize(static_cast<size_t>(std::max(r.train_ranks.back(), r.rollout_ranks.back())) + 1);
  for (size_t i = 0; i < r.tensors.size(); ++i)
    for (const Transfer& t : r.plan.transfers[i]) {
      RefitListing::Rank& to = r.ranks[static_cast<size_t>(t.destination)];
      const int64_t bytes = t.box.numel() * dtype_bytes(r.tensors[i].dtype);
      to.needed += bytes;
      (t.source == t.destination ? to.own : to.received) += bytes;
      if (t.source == t.destination) continue;
      r.ranks[static_cast<size_t>(t.source)].sent += bytes;
      r.received += bytes;
      ++r.transfers;
    }
  const RefitLoad load = refit_load(kinds.tensors, kinds.counts);
  for (const auto& [rank, bytes] : load.received) r.lacking += bytes;
  for (const auto& [rank, bytes] : load.sent) r.least_largest_sent = std::max(r.least_largest_sent, bytes);
  for (const RefitListing::Rank& rank : r.ranks) r.largest_sent = std::max(r.largest_sent, rank.sent);
  return r;
}

std::string refit_listing_text(const RefitListing& r, const RefitListingView& view) {
  const std::vector<ShownTensor> shown = shown_tensors(r, view);
  std::string out = fmt::format("refit of {} tensors in {}: trainer {} on ranks {} -> rollout {} on ranks {}\n", r.tensors.size(),
                                dtype_name(r.options.rollout_dtype), r.train.to_string(), ranks_text(r.train_ranks),
                                rollout_text(r.rollout), ranks_text(r.rollout_ranks));
  if (r.transfers == 0)
    out += "  nothing travels: who needs a tensor has it\n";
  else
    out += fmt::format("  {} transfers in {} bucket{}, two of which share {}\n", r.transfers, r.buckets,
                       r.buckets == 1 ? "" : "s", size_text(r.options.watermark));
  out += fmt::format("  {} received; byte ratio {:.3f} (over what the rollout's ranks keep and do not hold)\n",
                     size_text(r.received), r.byte_ratio());
  const auto fullest =
      std::max_element(r.ranks.begin(), r.ranks.end(), [](const auto& a, const auto& b) { return a.sent < b.sent; });
  if (r.transfers > 0)
    out += fmt::format("  largest sender: rank {}, {}; no plan could leave it less than {}; largest box {}\n",
                       fullest - r.ranks.begin(), size_text(r.largest_sent), size_text(r.least_largest_sent),
                       size_text(r.plan.largest_box));
  out += fmt::format("\n  {:>5}  {:<8} {:>16} {:>16} {:>16} {:>16}   [bytes]\n", "rank", "role", "needs", "own", "receives",
                     "sends");
  const size_t rows = view.limit > 0 ? std::min(r.ranks.size(), kRankRows) : r.ranks.size();
  for (size_t i = 0; i < rows; ++i) {
    const RefitListing::Rank& rank = r.ranks[i];
    out += fmt::format("  {:>5}  {:<8} {:>16} {:>16} {:>16} {:>16}\n", i, role_of(r, static_cast<int>(i)), rank.needed, rank.own,
                       rank.received, rank.sent);
  }
  if (rows < r.ranks.size()) out += fmt::format("  ... {} more ranks (--limit 0 shows all)\n", r.ranks.size() - rows);
  out += "\n  who sends which box to whom\n";
  int64_t transfers_left = 0, tensors_left = 0, still = 0;
  for (const ShownTensor& t : shown) {
    const RefitTensor& tensor = r.tensors[t.tensor];
    if (t.shown < t.transfers) transfers_left += t.transfers - t.shown, ++tensors_left;
    if (t.shown == 0 && (t.transfers > 0 || view.name == "*")) {
      still += t.transfers == 0;
      continue;
    }
    out += fmt::format("  {} {} {}", tensor.name, shape_text(tensor.shape), dtype_name(tensor.dtype));
    if (t.transfers == 0) out += ": nothing travels";
    if (t.own_bytes > 0) out += fmt::format("; {} bytes from ranks' own parts", t.own_bytes);
    out += "\n";
    for_each_shown(r, t, [&](const Transfer& transfer, int64_t bytes) {
      out += fmt::format("    {} -> {}  {}  {} bytes\n", transfer.source, transfer.destination, box_text(transfer.box), bytes);
    });
  }
  if (transfers_left > 0)
    out += fmt::format("  ... {} more transfers of {} tensors (--limit 0 shows all)\n", transfers_left, tensors_left);
  if (still > 0) out += fmt::format("  {} tensors do not travel: who needs them has them\n", still);
  if (shown.size() < r.tensors.size())
    out += fmt::format("  ... {} more tensors, whose names are not {}\n", r.tensors.size() - shown.size(), view.name);
  return out;
}

std::string refit_listing_json(const RefitListing& r, const RefitListingView& view) {
  const std::vector<ShownTensor> shown = shown_tensors(r, view);
  Json j;
  j["trainer"] = {{"mesh", r.train.to_string()}, {"ranks", r.train_ranks}};
  j["rollout"] = {{"mesh", rollout_text(r.rollout)}, {"ranks", r.rollout_ranks}, {"dtype", dtype_name(r.options.rollout_dtype)}};
  j["transfers"] = r.transfers, j["buckets"] = r.buckets, j["watermark_bytes"] = r.options.watermark;
  j["received_bytes"] = r.received, j["lacking_bytes"] = r.lacking, j["byte_ratio"] = r.byte_ratio();
  j["largest_sender_bytes"] = r.largest_sent, j["largest_sender_bound_bytes"] = r.least_largest_sent;
  j["largest_box_bytes"] = r.plan.largest_box;
  for (size_t i = 0; i < r.ranks.size(); ++i) {
    const RefitListing::Rank& rank = r.ranks[i];
    j["ranks"].push_back({{"rank", i},
                          {"role", role_of(r, static_cast<int>(i))},
                          {"needed_bytes", rank.needed},
                          {"own_bytes", rank.own},
                          {"received_bytes", rank.received},
                          {"sent_bytes", rank.sent}});
  }
  int64_t transfers_left = 0;
  j["tensors"] = Json::array();
  for (const ShownTensor& t : shown) {
    const RefitTensor& tensor = r.tensors[t.tensor];
    transfers_left += t.transfers - t.shown;
    Json transfers = Json::array();
    for_each_shown(r, t, [&](const Transfer& transfer, int64_t bytes) {
      transfers.push_back({{"from", transfer.source},
                           {"to", transfer.destination},
                           {"offset", transfer.box.offset},
                           {"size", transfer.box.size},
                           {"bytes", bytes}});
    });
    j["tensors"].push_back({{"name", tensor.name},
                            {"shape", tensor.shape},
                            {"dtype", dtype_name(tensor.dtype)},
                            {"own_bytes", t.own_bytes},
                            {"transfers", std::move(transfers)},
                            {"transfers_not_listed", t.transfers - t.shown}});
  }
  j["transfers_not_listed"] = transfers_left, j["tensors_not_listed"] = r.tensors.size() - shown.size();
  return j.dump(2) + "\n";
}

}  // namespace weft
