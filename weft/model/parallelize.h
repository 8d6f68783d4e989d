#pragma once
// Puts a model on a mesh: what the model-parallel axes do to each parameter, then FSDP by layer.

#include <memory>

#include "weft/mesh/sharding_plan.h"
#include "weft/model/causal_lm.h"
#include "weft/parallel/rank_mesh.h"

namespace weft {

// One table for all families, for the blocks hold no family's name: attention and MLPs by columns, then rows, on tp; embeddings
// and head by vocabulary; experts on ep; over-encoded tables on the own axis "oe". With sequence parallelism what stands between
// the blocks sees a slice of the rows on each tp rank.
ShardingPlan sharding_table(const ModelConfig& config, bool sequence_parallel = false);

// The own axes of a model: what a mesh string may name besides replicate, fsdp, cp, tp and ep.
std::vector<std::string> own_axes(const ModelConfig& config);

// UsageError for an own axis that the model does not have, or that the mesh was not asked about.
void check_mesh(const ModelConfig& config, const ParallelDims& dims);

// The table with a user's entries (parse_plan_entry), which override it, for these parameters. On tp, ep and own axes a block is
// as the table has it or, with all its parameters, on every rank: attention, a dense MLP, the embedding and the head as
// `replicated` on tp, a layer's experts and an over-encoded table, whose ranks have other tokens, as `replicated-partial`.
// UsageError for other placements, with what there is, and as check_plan.
ShardingPlan plan_of(const ModelConfig& config, const ParallelDims& dims, bool sequence_parallel,
                     const std::vector<std::string>& entries, const std::vector<const nn::Parameter*>& parameters);

// A rollout's mesh (dp, tp, ep), which ParallelDims has as fsdp = dp: what its ranks hold of a parameter. Nothing is cut by dp.
Layout rollout_layout(const ModelConfig& config, const ParallelDims& dims, const nn::Parameter& p);
// Before the weights have memory; all ranks of the rollout's mesh. UsageError as below.
void place_for_rollout(CausalLM& model, std::shared_ptr<const RankMesh> mesh);

// Before materialize(); all ranks of the mesh. UsageError for sizes that the model's shape forbids, with those that work.
void parallelize(CausalLM& model, std::shared_ptr<const RankMesh> mesh, const std::vector<std::string>& entries = {});

}  // namespace weft
