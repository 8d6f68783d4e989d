// `weft plan --json`: stable names that end in their units; numbers by rank up to kRanks, least and most beyond.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "weft/train/plan.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kRanks = 64;

void put(Json& to, const std::string& name, const std::vector<int64_t>& by_rank) {
  const auto low = std::min_element(by_rank.begin(), by_rank.end()), high = std::max_element(by_rank.begin(), by_rank.end());
  Json& j = to[name];
  j["least"] = *low, j["most"] = *high, j["fullest_rank"] = high - by_rank.begin();
  j["all_ranks"] = std::accumulate(by_rank.begin(), by_rank.end(), int64_t{0});
  if (by_rank.size() <= kRanks) j["by_rank"] = by_rank;
}

std::vector<int64_t> dense(const std::map<int64_t, int64_t>& bytes, int64_t ranks) {
  std::vector<int64_t> out(static_cast<size_t>(ranks), 0);
  for (const auto& [rank, b] : bytes) out[static_cast<size_t>(rank)] = b;
  return out;
}

Json memory(const MemoryPlan& m, int64_t world) {
  Json j;
  for (const MemoryKind& k : m.kinds) put(j, k.name + "_bytes", k.bytes);
  std::vector<int64_t> totals;
  for (int64_t r = 0; r < world; ++r) totals.push_back(m.total(r));
  put(j, "total_bytes", totals);
  return j;
}

Json mesh(const std::string& text, const ParallelDims& d, bool rollout) {
  Json j{{"text", text}, {"ranks", d.world()}};
  if (rollout) {
    j["dp"] = d.fsdp;
  } else {
    j["replicate"] = d.replicate, j["fsdp"] = d.fsdp, j["cp"] = d.cp;
  }
  j["tp"] = d.tp, j["ep"] = d.ep;
  for (const auto& [name, size] : d.own) j[name] = size;
  return j;
}

}  // namespace

std::string plan_json(const Plan& p) {
  const PlanOptions& o = p.options;
  Json j;
  Json& model = j["model"];
  model["family"] = p.table.config.family;
  model["runs"] = p.table.runs;
  model["parameters"] = p.table.num_parameters();
  model["active_parameters"] = p.table.active_parameters();
  model["notes"] = p.table.notes;
  j["train_mesh"] = mesh(p.train.to_string(), p.train, false);
  j["rollout_mesh"] = mesh(rollout_text(p.rollout), p.rollout, true);
  j["rollout_mesh"]["first_rank"] = p.rollout_rank(0);
  j["job_ranks"] = p.job_ranks();
  j["options"] = {{"param_dtype", dtype_name(o.param_dtype)},
                  {"rollout_dtype", dtype_name(o.rollout_dtype)},
                  {"apart", o.apart},
                  {"recompute", o.recompute},
                  {"sequence_parallel", o.sequence_parallel},
                  {"micro_batch_tokens", o.tokens()},
                  {"micro_batch_head_rows", o.head_rows()},
                  {"micro_batches", o.micro_batches},
                  {"kv_cache_tokens", o.kv_cache_tokens},
                  {"block_size_tokens", o.block_size},
                  {"bandwidth_gb_per_s", o.bandwidth_gb},
                  {"axis_bandwidth_gb_per_s", o.axis_bandwidth_gb},
                  {"memory_gb", o.memory_gb}};
  j["weights"] = Json::array();
  for (const WeightRow& w : p.weights)
    j["weights"].push_back({{"name", w.name},
                            {"shape", w.shape},
                            {"count", w.count},
                            {"train_cuts", w.train},
                            {"rollout_cuts", w.rollout},
                            {"train_most_elements", w.train_elements},
                            {"rollout_most_elements", w.rollout_elements}});
  j["train_memory"] = memory(p.train_memory, p.train.world());
  j["rollout_memory"] = memory(p.rollout_memory, p.rollout.world());
  std::vector<int64_t> totals;
  for (int64_t r = 0; r < p.job_ranks(); ++r) totals.push_back(p.total(r));
  put(j, "both_roles_bytes", totals);
  if (!p.shared_weights.empty()) put(j, "shared_weights_bytes", p.shared_weights);
  j["update_traffic"] = Json::array();
  for (const TrafficRow& row : p.traffic.rows) {
    Json r{{"axis", row.axis}, {"purpose", row.purpose}};
    r["operations"] = *std::max_element(row.operations.begin(), row.operations.end());
    put(r, "sent_bytes", row.sent);
    put(r, "received_bytes", row.received);
    r["busiest_rank_s"] = p.seconds(row);
    j["update_traffic"].push_back(std::move(r));
  }
  j["update_traffic_s"] = p.traffic_seconds();
  Json& refit = j["refit"];
  const int64_t ranks = p.job_ranks();
  put(refit, "kept_bytes", dense(p.refit.load.needed, ranks));
  put(refit, "received_bytes", dense(p.refit.load.received, ranks));
  put(refit, "sent_bytes", dense(p.refit.load.sent, ranks));
  refit["unique_bytes"] = p.refit.load.unique;
  refit["largest_box_bytes"] = p.refit.load.largest_box;
  refit["sent_is_transfer_by_transfer"] = p.refit.listed;
  refit["receivers_s"] = p.refit.receive_seconds;
  refit["senders_s"] = p.refit.send_seconds;
  refit["lower_bound_s"] = p.refit.bound_seconds;
  refit["senders_with_forwarding_s"] = p.refit.forward_seconds;
  refit["flow_ranks_from"] = p.refit.from_block, refit["flow_ranks_to"] = p.refit.to_block;
  refit["flow_bytes"] = p.refit.flows;
  j["uneven"] = Json::array();
  for (const UnevenTensor& u : p.uneven)
    j["uneven"].push_back(
        {{"role", u.role}, {"name", u.name}, {"why", u.why}, {"most_over_mean", u.most_over_mean}, {"excess_bytes", u.bytes}});
  j["misfits"] = p.misfits;
  return j.dump(2) + "\n";
}

}  // namespace weft
