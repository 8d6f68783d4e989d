#include "weft/rl/aggregation.h"

#include <gtest/gtest.h>

#include <limits>

#include "weft/base/error.h"
#include "weft/rl/golden_test_util.h"

namespace weft {
namespace {

using rl_test::Case;
using rl_test::golden;
using rl_test::Values;

TEST(AggregationTest, Aggregate_EqualsVerl) {
  int covered = 0;
  for (const Case& c : rl_test::golden_cases("agg", "agg/")) {
    int64_t begin = 0, end = 10;
    if (c.params.contains("rows") && c.params["rows"].is_array()) {
      begin = c.params["rows"][0].get<int64_t>();
      end = c.params["rows"][1].get<int64_t>();
    }
    const Aggregation aggregation = rl_test::aggregation_of(c, begin, end);
    std::vector<uint8_t> mask = golden().mask;
    for (int64_t t = 0; t < 170; ++t) {
      if (t < begin * 17 || t >= end * 17) mask[t] = 0;
    }
    const AggregateResult result = aggregate({golden().offsets, mask}, c.input("x"), aggregation);
    if (c.name.ends_with("onlymasked")) {  // 0 / 0 in verl
      EXPECT_EQ(result.value, 0.0) << c.name;
      EXPECT_EQ(result.grad, Values(170, 0.0)) << c.name;
    } else {
      const bool dp_sum = c.name == "agg/token-sum/dp2";  // token-sum has no denominator that could hold the factor
      const double factor = dp_sum ? c.number("dp_size", 1) : 1.0;
      Values grad = result.grad;
      for (double& w : grad) w *= factor;
      // verl's sequence modes turn NaN outside the mask into a NaN loss; ours stays what it is without it.
      if (!c.nonfinite) rl_test::expect_close(result.value * factor, c.outputs.at("loss")[0], c.name);
      EXPECT_TRUE(std::isfinite(result.value)) << c.name;
      Values expected = c.outputs.at("grad");
      if (c.nonfinite) {
        for (int64_t t = 0; t < 170; ++t) expected[t] = mask[t] ? expected[t] : 0.0;
      }
      rl_test::expect_close(grad, expected, c.name);
    }
    ++covered;
  }
  EXPECT_EQ(covered, 33);
}

TEST(AggregationTest, Aggregate_OfEntropyEqualsVerl) {
  for (const Case& c : rl_test::golden_cases("value", "entropy/")) {
    const AggregateResult result = aggregate(golden().rows(), c.outputs.at("token_entropy"), rl_test::aggregation_of(c));
    rl_test::expect_close(result.value, c.outputs.at("loss")[0], c.name);
  }
}

TEST(AggregationTest, ParseMode_RoundTripsAndNamesTheKnownOnes) {
  for (const char* name : {"token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "token-sum"}) {
    EXPECT_EQ(aggregation_mode_name(parse_aggregation_mode(name)), name);
  }
  try {
    parse_aggregation_mode("token_mean");
    FAIL();
  } catch (const ValueError& e) {
    EXPECT_NE(std::string(e.what()).find("token_mean"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("seq-mean-token-mean"), std::string::npos);
  }
}

TEST(AggregationTest, TokenWeight_WithoutItsDenominatorIsOurBug) {
  EXPECT_THROW(token_weight({AggregationMode::kTokenMean, {}}, 3), InternalError);
  EXPECT_THROW(token_weight({AggregationMode::kSeqMeanTokenSumNorm, {3, 1, 0}}, 3), InternalError);
  EXPECT_EQ(token_weight({AggregationMode::kTokenMean, {}}, 0), 0.0);
}

TEST(RowsTest, CheckRows_RefusesBrokenOffsetsAndSizes) {
  const std::vector<uint8_t> mask(4, 1);
  for (const std::vector<int64_t>& offsets : {std::vector<int64_t>{}, {1, 4}, {0, 3, 2, 4}, {0, 3}}) {
    EXPECT_THROW(check_rows({offsets, mask}), InternalError);
  }
  const std::vector<int64_t> offsets = {0, 0, 4};
  check_rows({offsets, mask});
  EXPECT_THROW(aggregate({offsets, mask}, Values(3, 0.0), {AggregationMode::kTokenSum, {}}), InternalError);
}

}  // namespace
}  // namespace weft
