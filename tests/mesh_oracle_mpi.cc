// Run by mpirun, one rank a process: every replicate x fsdp mesh of this world, and some with cp, tp and ep, against one rank,
// which each process computes for itself.
#include <algorithm>

#include "weft/train/test_mesh_oracle.h"

namespace weft {
namespace {

using namespace weft::testing;

TEST(MeshOracleMpi, MeshesOfThisWorld) {
  const LaunchWorld world = launch_world();
  ASSERT_TRUE(world.mpi) << "start it with mpirun";
  for (const char* model : {"moe", "dense", "over_encoded"}) {
    const OracleOptions options{.model = model, .steps = 3};
    const OracleRun one = run_oracle(options, nullptr, nullptr);
    std::vector<std::string> meshes = all_meshes(world.size, false);
    const std::vector<std::string> all = all_meshes(world.size, true);
    for (size_t i = 0; i < all.size(); i += std::max<size_t>(1, all.size() / 6)) meshes.push_back(all[i]);
    meshes.push_back(all.back());
    for (const std::string& mesh : meshes) expect_mesh_equals_one_rank(mesh, options, one);
  }
}

}  // namespace
}  // namespace weft
