#include "weft/cli/mesh_option.h"

#include "weft/comm/launch.h"
#include "weft/mesh/parallel_dims.h"
#include "weft/train/loaded_model.h"

namespace weft {

bool on_mesh_option(const Arguments& args, const std::string& model, const Registry& registry, const TokenSharing& sharing,
                    int threads_per_rank, const std::function<void(std::shared_ptr<const RankMesh>)>& fn) {
  if (!args.has("--mesh")) {
    fn(nullptr);
    return true;
  }
  const LaunchWorld launched = launch_world();
  const ParallelDims dims = parse_parallel_dims(args.get("--mesh"), launched.mpi ? launched.size : 0, {"oe"});
  if (!launched.mpi) check_thread_ranks(dims.world(), "--mesh " + args.get("--mesh"));
  check_model_on_mesh(model, registry.families, dims, sharing, {});
  CommOptions comm;
  comm.threads_per_rank = threads_per_rank;
  bool main = !launched.mpi;
  run_ranks(static_cast<int>(dims.world()), comm, [&](Communicator& world) {
    if (launched.mpi) main = world.rank() == 0;
    fn(make_rank_mesh(dims, world, sharing));
  });
  return main;
}

}  // namespace weft
