#pragma once
// FSDP2's fully_shard for weft's module tree: each parameter is cut over the mesh's fsdp axis, gathered for the forward and the backward
// of its module, and its gradient is reduced to this rank's part (docs/sharding.md).
//
//   for (nn::Module* layer : layers) fully_shard(*layer, mesh);   // bottom up
//   fully_shard(model, mesh);                                     // what is left: embeddings, norm, head
//   model.materialize(device);                                    // this rank's parts only
//
// One call is one group: the parameters below the module that no earlier call took, gathered and reduced together. Names stay as they
// are; after it a Parameter's master(), grad() and the optimizer's state are this rank's part. Every rank of the mesh makes the same
// calls and runs the same forwards and backwards, with 0 tokens where it has none.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/mesh/layout.h"
#include "weft/nn/module.h"
#include "weft/parallel/rank_mesh.h"

namespace weft {

struct FullyShardOptions {
  // Give the gathered parameters back after the module's forward and gather them again in the backward. Unset: yes, but not in the
  // outermost group, whose backward comes next.
  std::optional<bool> reshard_after_forward;
  // What gradients travel in; they are accumulated in fp32.
  DType reduce_dtype = DType::kF32;
  // Gradients are summed over ranks and divided by this (FSDP2's default is the number of ranks; ours 1: losses divide by global
  // denominators).
  double gradient_divide_factor = 1;
  // Stay whole on every rank; their gradients are not reduced.
  std::vector<const nn::Parameter*> ignored;
};

class ShardGroup;

// ValueError for a module that is sharded already, a parameter without dims, or parameters that have memory already (build without,
// shard, then materialize).
ShardGroup& fully_shard(nn::Module& module, std::shared_ptr<const RankMesh> mesh, FullyShardOptions options = {});

// The groups at and below `module`, in the order of its modules; none where nothing is sharded.
std::vector<ShardGroup*> shard_groups(nn::Module& module);

// For gradient accumulation, on all groups at and below: without sync a backward keeps full gradients and sends nothing; without
// all-reduce it leaves out the replicate axis. The next backward that does reduces the sum.
void set_requires_gradient_sync(nn::Module& module, bool on);
void set_requires_all_reduce(nn::Module& module, bool on);

// The layout of a parameter's master: replicated where it is not sharded.
Layout layout_of(const nn::Parameter& p, const RankMesh& mesh);
// What this rank's master holds of the parameter: all of it where it is not sharded.
std::vector<LocalBox> local_boxes(const nn::Parameter& p);

}  // namespace weft
