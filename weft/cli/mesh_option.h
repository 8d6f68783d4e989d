#pragma once
// --mesh of the commands that work on the ranks of a trainer's mesh.

#include <functional>
#include <memory>

#include "weft/cli/command.h"
#include "weft/parallel/rank_mesh.h"

namespace weft {

// Calls fn on each rank of --mesh: threads of this process, or this process as one of a launcher's. Without --mesh, and on one
// rank, the mesh is null. `model`: whose config.json says which meshes there can be. UsageError, before any rank starts, for a
// mesh that model or launcher forbids. True: this process has rank 0.
bool on_mesh_option(const Arguments& args, const std::string& model, const Registry& registry, const TokenSharing& sharing,
                    int threads_per_rank, const std::function<void(std::shared_ptr<const RankMesh>)>& fn);

}  // namespace weft
