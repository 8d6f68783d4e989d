#pragma once
// What a run would hold, send and wait for, from a config.json and two meshes alone: no weights, no ranks, integers
// (docs/plan.md).
//
// Bytes are those that weft's own program allocates and counts (CommStats); a test holds them to a run. "Rank" is a rank of the
// job: the trainer's are 0, 1, ...; the rollout's are the same ones, from 0, or with `apart` those behind the trainer's.

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/mesh/refit_plan.h"
#include "weft/model/parameter_table.h"

namespace weft {

struct PlanOptions {
  DType param_dtype = DType::kBF16;    // actor.param_dtype
  // What the rollout keeps, and what a refit sends; of int8 (model/int8_weights.h) the rest is of param_dtype, as is what the
  // rollout computes with.
  DType rollout_dtype = DType::kBF16;
  bool apart = false;
  bool recompute = false;                                  // actor.recompute
  bool sequence_parallel = false;                          // actor.sequence_parallel
  int64_t max_tokens_per_micro_batch = 16384;              // actor's key: fed by the ranks of one place in (replicate, fsdp)
  int64_t max_prompt_length = 0, max_response_length = 0;  // data's keys; 0: every token may be a response's
  int64_t micro_batches = 1;                               // of one optimizer update
  int64_t kv_cache_tokens = 256 * 1024;                    // rollout's key, of each tp group
  int64_t block_size = 16;                                 // rollout's key
  std::map<std::string, double> axis_bandwidth_gb;         // of axes (and "refit") whose links are others
  double bandwidth_gb = 50;                                // each way of each rank [GB/s]
  double memory_gb = 0;                                    // of a rank; 0: not given

  // What a micro-batch is planned with: as many sequences of the largest lengths as the budget holds, one at least (a longer one
  // has a micro-batch of its own); without lengths one sequence that is a response altogether.
  int64_t sequences() const;
  int64_t sequence_rows() const;  // fed tokens: all but the last
  int64_t tokens() const { return sequences() * sequence_rows(); }
  DType rollout_float() const { return rollout_dtype == DType::kI8 ? param_dtype : rollout_dtype; }
  double bandwidth(const std::string& axis) const;  // bytes a second
  int64_t head_rows() const;                        // of those, whose next token is a response's
};

// Bytes of one kind, by rank of its role.
struct MemoryKind {
  std::string name;  // "optimizer"
  std::string what;  // one line
  std::vector<int64_t> bytes;
};
struct MemoryPlan {
  std::vector<MemoryKind> kinds;
  int64_t total(int64_t rank) const;
  int64_t peak() const;  // the fullest rank's total
  // Zeros for a kind that is not there.
  int64_t of(const std::string& kind, int64_t rank) const;
};

// Of one update, by rank: what CommStats has by axis and purpose.
struct TrafficRow {
  std::string axis, purpose;
  std::vector<int64_t> operations, sent, received;  // bytes
};
struct TrafficPlan {
  std::vector<TrafficRow> rows;
  const TrafficRow* find(const std::string& axis, const std::string& purpose) const;
};

struct RefitSummary {
  RefitLoad load;
  bool listed = false;  // load.sent is that of the list of transfers, not of shares
  int64_t max_needed = 0, max_received = 0, max_sent = 0, total_received = 0;
  double receive_seconds = 0, send_seconds = 0;  // max_received and max_sent over the bandwidth
  double bound_seconds = 0;    // the larger of the two: nobody can be faster with these meshes and without forwarding
  double forward_seconds = 0;  // the bound of senders if replicas of the rollout forwarded to each other
  // Bytes from blocks of consecutive trainer ranks (rows) to blocks of rollout ranks.
  int64_t from_block = 1, to_block = 1;
  std::vector<std::vector<double>> flows;
};

// A kind of parameter in words: what does not divide evenly.
struct UnevenTensor {
  std::string role, name, why;
  double most_over_mean = 1;  // elements of the fullest rank over the mean
  int64_t bytes = 0;          // that it costs the fullest rank, of all layers
};

// One kind of parameter: every layer's parameter of one name and shape.
struct WeightRow {
  std::string name;  // "model.layers.*.mlp.experts.gate_up_proj"
  std::vector<int64_t> shape;
  int64_t count = 0;
  std::string train, rollout;                        // which axis cuts which dim
  int64_t train_elements = 0, rollout_elements = 0;  // the most that a rank keeps, of all `count`
};

struct Plan {
  PlanOptions options;
  ParameterTable table;
  ParallelDims train, rollout;
  MemoryPlan train_memory, rollout_memory;
  std::vector<int64_t> shared_weights;  // bytes of rank i of both roles that both count in `weights`; empty where they are apart
  TrafficPlan traffic;
  RefitSummary refit;
  std::vector<WeightRow> weights;
  std::vector<UnevenTensor> uneven;
  std::vector<std::string> misfits;                                // what does not fit into memory_gb, with meshes that do
  std::vector<std::vector<int64_t>> train_shares, rollout_shares;  // weight bytes [category][rank], for pictures
  int64_t job_ranks() const;
  int64_t rollout_rank(int64_t rank) const { return options.apart ? train.world() + rank : rank; }
  // Of a rank of the job, both roles together; what they share once.
  int64_t total(int64_t job_rank) const;
  double seconds(const TrafficRow& row) const;  // of the busiest rank, sending and receiving at once
  double traffic_seconds() const;               // of one update at the bandwidth, one operation after another
};

// The names of train_shares.
const std::vector<std::string>& weight_categories();

// FileError for the config; UsageError for meshes that the model's shape forbids, with the nearest that work.
Plan make_plan(const HfConfig& hf, const std::string& train_mesh, const std::string& rollout_mesh, const PlanOptions& options,
               const std::vector<Family>& extra = {});

// A trainer's and a rollout's mesh for a model, read and held to its shape. UsageError as make_plan's.
struct PlanMeshes {
  ParallelDims train, rollout;
};
PlanMeshes read_plan_meshes(const ParameterTable& table, const std::string& train_mesh, const std::string& rollout_mesh);

// The tensors of a refit as the planner wants them, of families that do not run, too: one for each parameter (refit_tensors of
// rollout_role.h, which reads a recipe's plan as well), or one for each kind with how many there are.
struct PlannedRefitTensors {
  std::vector<RefitTensor> tensors;
  std::vector<int64_t> counts;
};
PlannedRefitTensors planned_refit_tensors(const ParameterTable& table, const ParallelDims& train, const ParallelDims& rollout,
                                          DType rollout_dtype, bool apart, bool by_kind, DType param_dtype = DType::kBF16);
// Rank i of a role's mesh is rank ranks[i] of the job.
PlannedRefitTensors planned_refit_tensors(const ParameterTable& table, const ParallelDims& train,
                                          std::span<const int> train_ranks, const ParallelDims& rollout,
                                          std::span<const int> rollout_ranks, DType rollout_dtype, bool by_kind,
                                          DType param_dtype = DType::kBF16);

std::string plan_text(const Plan& plan);
std::string plan_json(const Plan& plan);  // names end in their units
std::string plan_html(const Plan& plan);  // one page, no other resources

}  // namespace weft
