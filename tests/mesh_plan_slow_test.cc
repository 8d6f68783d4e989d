// The whole product of which Plan.TwoDimsSampled in weft/mesh/plan_test.cc takes 1 in 101: tensors of two dims, all meshes of one
// and two axes with up to 8 ranks, all pairs of placements, from mesh to mesh.

#include <gtest/gtest.h>

#include "weft/mesh/test_support.h"

namespace weft {
namespace {

TEST(MeshPlanProduct, TwoDimsExhaustive) {
  int64_t pairs = 0;
  const std::vector<DeviceMesh> meshes = test::two_axis_meshes(8);
  for (int64_t rows : {0, 1, 2, 3, 5, 8, 13})
    for (int64_t columns : {0, 1, 2, 3, 5, 8, 13}) {
      const std::vector<test::Case> cases = test::all_cases({rows, columns}, meshes);
      for (const test::Case& from : cases)
        for (const test::Case& to : cases) {
          ASSERT_EQ(test::wrong_with_pair(from, to), "");
          ++pairs;
        }
    }
  EXPECT_EQ(pairs, 49 * (20 * 11) * (20 * 11));
}

}  // namespace
}  // namespace weft
