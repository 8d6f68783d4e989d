#pragma once
// FSDP2's fully_shard for weft's module tree: each parameter is cut over the mesh's fsdp axis, gathered for the forward and the
// backward of its module, and its gradient is reduced to this rank's part (docs/sharding.md).
//
//   for (nn::Module* layer : layers) fully_shard(*layer, mesh);   // bottom up
//   fully_shard(model, mesh);                                     // what is left: embeddings, norm, head
//   model.materialize(device);                                    // this rank's parts only
//
// One call is one group: the parameters below the module that no earlier call took, gathered and reduced together. Names stay as
// they are; after it a Parameter's master(), grad() and the optimizer's state are this rank's part. Every rank of the mesh makes
// the same calls and runs the same forwards and backwards, with 0 tokens where it has none.

#include <memory>
#include <vector>

#include "weft/mesh/layout.h"
#include "weft/nn/module.h"
#include "weft/parallel/rank_mesh.h"
#include "weft/parallel/shard_group.h"

namespace weft {

struct FullyShardOptions : ShardOptions {
  // Stay whole on every rank; their gradients are not reduced.
  std::vector<const nn::Parameter*> ignored;
};

// ValueError for a module that is sharded already, a parameter without dims, or parameters that have memory already (build
// without, shard, then materialize).
ShardGroup& fully_shard(nn::Module& module, std::shared_ptr<const RankMesh> mesh, FullyShardOptions options = {});

// The groups at and below `module`, in the order of its modules; none where nothing is sharded.
std::vector<ShardGroup*> shard_groups(nn::Module& module);

// FSDP2's switches, on all groups at and below (shard_group.h has them for one group). Without gradient sync a backward keeps
// full gradients and sends nothing; without all-reduce it leaves out the replicate axis and the sums over tp; the next backward
// that does reduces the
// sum. Without reshard_after_backward the parameters stay gathered until they are updated. is_last_backward(false): the last
// reduction may still run when the backward returns; gradients are complete after the next one that is the last.
void set_requires_gradient_sync(nn::Module& module, bool on);
void set_requires_all_reduce(nn::Module& module, bool on);
void set_reshard_after_backward(nn::Module& module, bool on);
void set_is_last_backward(nn::Module& module, bool on);
// On the module's own group: gathers of other modules' groups that begin when its own has ended, in place of the next one in
// order. ValueError for modules without a group of their own.
void set_modules_to_forward_prefetch(nn::Module& module, const std::vector<nn::Module*>& modules);
void set_modules_to_backward_prefetch(nn::Module& module, const std::vector<nn::Module*>& modules);

// This rank's parts of all parameters at and below, by name, in the order of parameters(): what FSDP2's state_dict() holds. No
// communication; shares memory with the masters. Replicated layouts where nothing is sharded.
std::vector<std::pair<std::string, DistributedTensor>> sharded_state_dict(nn::Module& module,
                                                                          const std::shared_ptr<const RankMesh>& mesh);

// The layout of a parameter's master: replicated where it is not sharded.
Layout layout_of(const nn::Parameter& p, const RankMesh& mesh);
// What this rank's master holds of the parameter: all of it where it is not sharded.
std::vector<LocalBox> local_boxes(const nn::Parameter& p);
// Whether this rank counts it in a sum over the ranks of a replica: the first of those that keep the same part.
bool counts_here(const nn::Parameter& p);

}  // namespace weft
