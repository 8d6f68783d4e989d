#pragma once
// Puts a model on a mesh: what the model-parallel axes do to each parameter, then FSDP by layer.

#include <memory>

#include "weft/mesh/sharding_plan.h"
#include "weft/model/causal_lm.h"
#include "weft/parallel/rank_mesh.h"

namespace weft {

// One table for all families, for the blocks hold no family's name: attention and MLPs by columns, then rows, on tp; embeddings and head
// by vocabulary; experts on ep; over-encoded tables on the own axis "oe". With sequence parallelism what stands between the blocks sees a
// slice of the rows on each tp rank.
ShardingPlan sharding_table(const ModelConfig& config, bool sequence_parallel = false);

// The own axes of a model: what a mesh string may name besides replicate, fsdp, cp, tp and ep.
std::vector<std::string> own_axes(const ModelConfig& config);

// UsageError for an own axis that the model does not have, or that the mesh was not asked about.
void check_mesh(const ModelConfig& config, const ParallelDims& dims);

// Before materialize(); all ranks of the mesh. UsageError for sizes that the model's shape forbids, with those that work.
void parallelize(CausalLM& model, std::shared_ptr<const RankMesh> mesh);

}  // namespace weft
