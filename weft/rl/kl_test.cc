#include "weft/rl/kl.h"

#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/rl/distillation.h"
#include "weft/rl/golden_test_util.h"
#include "weft/rl/value_loss.h"

namespace weft {
namespace {

using rl_test::Case;
using rl_test::golden;
using rl_test::Values;

TEST(KlTest, Terms_EqualVerl) {
  int covered = 0;
  for (const Case& c : rl_test::golden_cases("kl", "kl/")) {
    if (c.name == "kl/reward_shaping") continue;  // own test
    const KlKind kind = parse_kl_kind(c.text("kl_penalty"));
    Values values, grads;
    for (size_t t = 0; t < 170; ++t) {
      const KlTerm term = kl_term(kind, c.input("logprob")[t], c.input("ref_logprob")[t]);
      values.push_back(term.value);
      grads.push_back(term.grad);
    }
    // exp(e) - e - 1 cancels near e = 0; there the reference is no better than a few 1e-17 itself.
    rl_test::expect_close(values, c.outputs.at("kl"), c.name);
    rl_test::expect_close(grads, c.outputs.at("grad"), c.name + " grad");
    ++covered;
  }
  EXPECT_EQ(covered, 24);
}

TEST(KlTest, KlInReward_EqualsVerlOnTokensThatCount) {
  for (const Case& c : rl_test::golden_cases("kl", "kl/reward_shaping")) {
    const Values kl = kl_in_reward(parse_kl_kind("kl"), c.number("kl_ratio", 0), golden().rows(), c.input("old_log_prob"),
                                   c.input("ref_log_prob"));
    Values shaped, expected;
    for (size_t t = 0; t < 170; ++t) {
      if (golden().mask[t]) {
        shaped.push_back(c.input("token_level_scores")[t] - kl[t]);
        expected.push_back(c.outputs.at("token_level_rewards")[t]);
      } else {
        EXPECT_EQ(kl[t], 0.0);
      }
    }
    rl_test::expect_close(shaped, expected, c.name);
  }
}

TEST(KlTest, AdaptiveController_EqualsVerl) {
  const Case c = rl_test::golden_cases("advantage", "adv/adaptive_kl_controller")[0];
  AdaptiveKlController controller(c.number("init_kl_coef", 0), c.number("target_kl", 0), c.number("horizon", 0));
  Values values;
  for (const auto& update : c.params.at("updates")) {
    controller.update(update[0].get<double>(), update[1].get<double>());
    values.push_back(controller.coef());
  }
  rl_test::expect_close(values, c.outputs.at("values"), c.name);
  EXPECT_THROW(AdaptiveKlController(0.1, 0.0, 10), ValueError);
  EXPECT_THROW(AdaptiveKlController(-0.1, 1.0, 10), ValueError);
}

TEST(KlTest, ParseKind_RefusesUnknownNames) {
  EXPECT_THROW(parse_kl_kind("k4"), ValueError);
  EXPECT_THROW(parse_kl_kind("+"), ValueError);
  EXPECT_THROW(parse_kl_kind(""), ValueError);
  EXPECT_TRUE(parse_kl_kind("low_var_kl+").straight_through);
}

TEST(KlTest, KlLoss_NeverReadsOutsideTheMask) {
  const Aggregation aggregation{AggregationMode::kTokenMean, count_denominators(golden().rows())};
  for (const bool unbiased : {false, true}) {
    const KlLossOptions options{parse_kl_kind("k3"), 0.1, unbiased};
    const auto loss = [&](const std::string& set) {
      return kl_loss(options, golden().rows(), golden().input(set + "/logp"), golden().input(set + "/old"),
                     golden().input(set + "/ref"), aggregation);
    };
    EXPECT_EQ(loss("nan").loss, loss("mild").loss);
    EXPECT_EQ(loss("nan").grad, loss("mild").grad);
    EXPECT_GT(loss("nan").kl_sum, 0.0);
    EXPECT_EQ(loss("nan").tokens, 94.0);
  }
}

TEST(ValueLossTest, ValueLoss_EqualsVerl) {
  int covered = 0;
  for (const Case& c : rl_test::golden_cases("value", "value/")) {
    const ValueLossResult r = value_loss(golden().rows(), c.input("vpreds"), c.input("values"), c.input("returns"),
                                         c.number("cliprange_value", 0), rl_test::aggregation_of(c));
    rl_test::expect_close(r.loss, c.outputs.at("loss")[0], c.name);
    rl_test::expect_close(r.grad, c.outputs.at("grad"), c.name);
    rl_test::expect_close(r.clipped / r.tokens, c.metric("vf_clipfrac"), c.name);
    ++covered;
  }
  EXPECT_EQ(covered, 10);
}

TEST(DistillationTest, Advantages_EqualSwiftOnTokensThatCount) {
  const Case c = rl_test::golden_cases("swift", "swift/opd_advantage")[0];
  const PackedRows rows = golden().rows();
  const Values base = spread_to_tokens(rows, c.input("advantages"));
  const Values out = distillation_advantages(rows, base, c.input("teacher_per_token_logps"), c.input("policy_per_token_logps"),
                                             c.number("teacher_kl_coef", 0));
  Values expected = c.outputs.at("advantages");
  for (size_t t = 0; t < 170; ++t) expected[t] = golden().mask[t] ? expected[t] : 0.0;
  rl_test::expect_close(out, expected, c.name);
}

}  // namespace
}  // namespace weft
