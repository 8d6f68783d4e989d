#include "weft/mesh/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "weft/base/error.h"

namespace weft {
namespace {

using testing::ElementsAre;

TEST(Placement, IdentityKeepsEveryValue) {
  for (double v : {0.0, -0.0, 1.5, -3.0, 1e300, -1e300}) {
    const double sum = identity(ReduceOp::kSum) + v;
    EXPECT_EQ(sum, v);
    EXPECT_EQ(std::signbit(sum), std::signbit(v));
    EXPECT_EQ(std::min(identity(ReduceOp::kMin), v), v);
    EXPECT_EQ(std::max(identity(ReduceOp::kMax), v), v);
  }
  EXPECT_THROW(identity(ReduceOp::kAvg), ValueError);
}

TEST(Placement, LeafBoundariesByName) {
  EXPECT_THAT(contraction_boundaries(64, 8), ElementsAre(0, 8, 16, 24, 32, 40, 48, 56, 64));
  EXPECT_THAT(contraction_boundaries(48, 8), ElementsAre(0, 6, 12, 18, 24, 30, 36, 42, 48));
  EXPECT_THAT(contraction_boundaries(13, 8), ElementsAre(0, 0, 2, 4, 6, 8, 10, 12, 13));
  EXPECT_THAT(contraction_boundaries(13, 4), ElementsAre(0, 2, 6, 10, 13));
  EXPECT_THAT(contraction_boundaries(13, 2), ElementsAre(0, 6, 13));
  EXPECT_THAT(contraction_boundaries(0, 2), ElementsAre(0, 0, 0));
  EXPECT_THAT(vocabulary_boundaries(100, 8), ElementsAre(0, 0, 16, 32, 48, 64, 80, 96, 100));
  EXPECT_THAT(vocabulary_boundaries(13, 2), ElementsAre(0, 0, 13));
}

TEST(Placement, SharesAreWholeLeavesAndAscend) {
  for (int64_t n = 0; n <= 4096; ++n) {
    const std::vector<int64_t> k8 = contraction_boundaries(n, 8), v8 = vocabulary_boundaries(n, 8);
    for (int64_t i = 0; i < 8; ++i) {
      ASSERT_EQ(k8[i], 2 * (i * ((n + 1) / 2) / 8));
      ASSERT_EQ(v8[i], 16 * (i * ((n + 15) / 16) / 8));
      ASSERT_LE(k8[i], k8[i + 1]);
      ASSERT_LE(v8[i], v8[i + 1]);
    }
    for (int64_t t : {1, 2, 4}) {
      const std::vector<int64_t> k = contraction_boundaries(n, t), v = vocabulary_boundaries(n, t);
      for (int64_t r = 0; r <= t; ++r) {
        ASSERT_EQ(k[r], k8[8 * r / t]);
        ASSERT_EQ(v[r], v8[8 * r / t]);
      }
    }
  }
  EXPECT_THROW(contraction_boundaries(64, 3), ValueError);
  EXPECT_THROW(vocabulary_boundaries(64, 16), ValueError);
  EXPECT_THROW(contraction_boundaries(-1, 2), ValueError);
}

}  // namespace
}  // namespace weft
