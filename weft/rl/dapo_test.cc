#include "weft/rl/dapo.h"

#include <gtest/gtest.h>

#include <cmath>

#include "weft/base/error.h"
#include "weft/rl/golden_test_util.h"

namespace weft {
namespace {

using rl_test::Case;
using rl_test::golden;
using rl_test::Values;

TEST(DapoTest, OverlongPunishment_EqualsVerl) {
  for (const Case& c : rl_test::golden_cases("dapo", "dapo/overlong")) {
    const bool trl = c.package == "trl";  // has a floor beyond the maximum length
    const auto max_length = static_cast<int64_t>(c.number(trl ? "max_completion_len" : "max_resp_len", 0));
    const auto buffer = static_cast<int64_t>(c.number(trl ? "soft_punish_cache" : "overlong_buffer_len", 0));
    const auto& lengths = c.params.at("lengths");
    for (size_t i = 0; i < lengths.size(); ++i) {
      const auto length = lengths[i].get<int64_t>();
      if (trl && length > max_length) continue;
      const double shaping = soft_overlong_punishment(length, max_length, buffer, c.number("penalty_factor", 1.0));
      rl_test::expect_close(shaping, c.outputs.at("shaping")[i], c.name);
      if (!trl) rl_test::expect_close(c.number("score", 0) + shaping, c.outputs.at("reward")[i], c.name);
    }
  }
}

TEST(DapoTest, OverlongPunishment_RefusesWhatHasNoMeaning) {
  EXPECT_THROW(soft_overlong_punishment(1, 16, 0), ValueError);
  EXPECT_THROW(soft_overlong_punishment(1, 16, 17), ValueError);
  EXPECT_THROW(soft_overlong_punishment(1, 16, 4, -1.0), ValueError);
}

TEST(DapoTest, GroupFilter_EqualsVerl) {
  for (const Case& c : rl_test::golden_cases("dapo", "dapo/filter")) {
    const std::vector<uint8_t> keep = keep_informative_groups(c.input("metric"), golden().group);
    rl_test::expect_close(Values(keep.begin(), keep.end()), c.outputs.at("keep"), c.name);
  }
}

TEST(DapoTest, GroupFilter_IsExactAndKnowsMissingMetrics) {
  const double nan = std::nan("");
  const Values metric = {0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, nan, 1.0, nan, 1.0, 0.0, nan, 5.0};
  const std::vector<int64_t> groups = {0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 4};
  EXPECT_EQ(keep_informative_groups(metric, groups), (std::vector<uint8_t>{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1}));
}

TEST(DapoTest, DynamicSampling_KeepsWhatItHasAndStopsAtTheBound) {
  using Next = DynamicSampling::Next;
  DynamicSampling sampling(8, 3);
  EXPECT_EQ(sampling.add(3, 8), Next::kGenerate);
  EXPECT_EQ(sampling.add(0, 8), Next::kGenerate);
  EXPECT_EQ(sampling.add(4, 8), Next::kBoundReached);
  EXPECT_EQ(sampling.kept(), 7);
  EXPECT_EQ(sampling.generated(), 24);
  DynamicSampling unbounded(4, 0);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(unbounded.add(0, 4), Next::kGenerate);
  EXPECT_EQ(unbounded.add(4, 4), Next::kEnough);
  EXPECT_EQ(unbounded.batches(), 51);
  EXPECT_THROW(DynamicSampling(0, 1), ValueError);
  EXPECT_THROW(DynamicSampling(1, -1), ValueError);
}

}  // namespace
}  // namespace weft
