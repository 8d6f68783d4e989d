// All meshes of 1 to 8 ranks against one rank; the fast tests (weft/train/mesh_oracle_test.cc) take those of 1 to 4 and the
// awkward ones.
#include "weft/train/test_mesh_oracle.h"

namespace weft {
namespace {

using namespace weft::testing;

TEST(MeshOracleSlow, EveryMeshEqualsOneRank) {
  for (const char* model : {"moe", "over_encoded", "dense"}) {
    const OracleOptions options{.model = model};
    const OracleRun one = run_oracle(options, nullptr, nullptr);
    int64_t count = 0;
    for (int64_t world = 1; world <= 8; ++world)
      for (const std::string& mesh : all_meshes(world, true)) {
        expect_mesh_equals_one_rank(mesh, options, one);
        if (options.model == "over_encoded")
          expect_mesh_equals_one_rank(mesh + ",oe" + mesh.substr(mesh.rfind('=')), options, one);
        OracleOptions slices = options;
        slices.sharing = {ContextSplit::kContiguous, true};
        if (mesh.find("cp=1,tp=1") == std::string::npos) expect_mesh_equals_one_rank(mesh, slices, one);
        ++count;
      }
    std::cout << model << ": " << count << " meshes" << std::endl;
  }
}

TEST(MeshOracleSlow, ThreeExpertsOnTwoRanks) {
  const OracleOptions options{.model = "three_experts"};
  const OracleRun one = run_oracle(options, nullptr, nullptr);
  for (int64_t world = 1; world <= 8; ++world)
    for (const std::string& mesh : all_meshes(world, true))
      if (mesh.ends_with("ep=2")) expect_mesh_equals_one_rank(mesh, options, one);
}

}  // namespace
}  // namespace weft
