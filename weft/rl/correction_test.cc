#include "weft/rl/correction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "weft/base/error.h"
#include "weft/rl/golden_test_util.h"
#include "weft/rl/metrics.h"

namespace weft {
namespace {

using rl_test::Case;
using rl_test::golden;
using rl_test::Values;

TEST(CorrectionTest, Weights_EqualVerl) {
  int covered = 0;
  for (const Case& c : rl_test::golden_cases("rollout", "rollout/is_")) {
    CorrectionOptions options;
    options.level = parse_importance_level(c.text("rollout_is"));
    const auto& threshold = c.params.at("rollout_is_threshold");
    parse_importance_threshold(threshold.is_string() ? threshold.get<std::string>() : threshold.dump(), &options);
    options.batch_normalize = c.params.at("rollout_is_batch_normalize").get<bool>();
    const CorrectionResult r = rollout_correction(golden().rows(), c.input("old_log_prob"), c.input("rollout_log_prob"), options);
    rl_test::expect_close(r.weights, c.outputs.at("weights"), c.name);
    EXPECT_EQ(r.mask, golden().mask);
    rl_test::expect_close(r.weight_mean, c.metric("rollout_is_mean"), c.name + " mean");
    // verl divides by its mean + 1e-8 twice over: at a mean of 0.1 that is 2e-7.
    rl_test::expect_close(r.effective_sample_size, c.metric("rollout_is_eff_sample_size"), c.name + " ess", 1e-6);
    if (options.batch_normalize)
      rl_test::expect_close(r.norm_factor, c.metric("rollout_is_batch_norm_factor"), c.name + " factor");
    if (options.mask_outside) rl_test::expect_close(r.outside_fraction, c.metric("rollout_is_oob_ratio"), c.name + " outside");
    if (c.text("rollout_is") == "token") {
      rl_test::expect_close(r.weight_max, c.metric("rollout_is_max"), c.name + " max");
      rl_test::expect_close(r.weight_min, c.metric("rollout_is_min"), c.name + " min");
      if (!options.mask_outside) {
        rl_test::expect_close(r.outside_fraction, c.metric("rollout_is_ratio_fraction_high"), c.name + " high");
      }
    }
    ++covered;
  }
  EXPECT_EQ(covered, 24);
}

TEST(CorrectionTest, Rejection_EqualsVerl) {
  int covered = 0;
  for (const Case& c : rl_test::golden_cases("rollout", "rollout/rs_")) {
    CorrectionOptions options;
    options.rejections = parse_rejection_rules(c.text("rollout_rs"), c.text("rollout_rs_threshold"));
    const CorrectionResult r = rollout_correction(golden().rows(), c.input("old_log_prob"), c.input("rollout_log_prob"), options);
    rl_test::expect_close(Values(r.mask.begin(), r.mask.end()), c.outputs.at("mask"), c.name);
    rl_test::expect_close(r.rejected_tokens, c.metric("rollout_rs_masked_fraction"), c.name);
    rl_test::expect_close(r.rejected_rows, c.metric("rollout_rs_seq_masked_fraction") * 10 / 9, c.name);  // there over all rows
    ++covered;
  }
  EXPECT_EQ(covered, 30);
}

TEST(CorrectionTest, Weights_EqualTrlInsideTheMask) {
  int covered = 0;
  for (const Case& c : rl_test::golden_cases("trl", "trl/is_")) {
    if (c.uses("wild")) continue;  // TRL clamps no log-ratio
    CorrectionOptions options;
    const std::string mode = c.text("mode");
    options.level = parse_importance_level(mode.substr(0, mode.find('_')));
    options.mask_outside = mode.ends_with("_mask");
    options.lower = c.number("clip_min", 0.0);
    options.upper = c.number("clip_max", 0.0);
    const CorrectionResult r =
        rollout_correction(golden().rows(), c.input("old_per_token_logps"), c.input("sampling_per_token_logps"), options);
    const Values& ratio = c.outputs.at("ratio");
    for (size_t t = 0; t < 170; ++t) {
      if (golden().mask[t]) rl_test::expect_close(r.weights[t], ratio.size() == 10 ? ratio[t / 17] : ratio[t], c.name);
    }
    ++covered;
  }
  EXPECT_EQ(covered, 8);
}

struct Small {
  std::vector<int64_t> offsets = {0, 2, 4, 4};
  std::vector<uint8_t> mask = {1, 1, 1, 0};
  Values old = {-1.0, -2.0, -1.0, std::nan("")};
  Values rollout = {-1.5, -1.0, -12.0, std::nan("")};
  PackedRows rows() const { return {offsets, mask}; }
};

TEST(CorrectionTest, Geometric_IsTheMeanOfLogRatios) {
  const Small s;
  CorrectionOptions options;
  options.level = ImportanceLevel::kGeometric;
  const CorrectionResult r = rollout_correction(s.rows(), s.old, s.rollout, options);
  EXPECT_NEAR(r.weights[0], std::exp(-0.25), 1e-15);
  EXPECT_EQ(r.weights[1], r.weights[0]);
  EXPECT_EQ(r.weights[2], 2.0);  // e^11, truncated
  EXPECT_EQ(r.weights[3], 0.0);
  EXPECT_NEAR(r.outside_fraction, 1.0 / 3, 1e-15);
}

TEST(CorrectionTest, Veto_RejectsTheRow) {
  Small s;
  std::swap(s.old, s.rollout);  // the second row's rho is now e^-11
  CorrectionOptions options;
  options.veto = 1e-4;
  const CorrectionResult r = rollout_correction(s.rows(), s.old, s.rollout, options);
  EXPECT_EQ(r.mask, (std::vector<uint8_t>{1, 1, 0, 0}));
  EXPECT_EQ(r.weights, (Values{1, 1, 1, 0}));
  EXPECT_EQ(r.rejected_rows, 0.5);
}

// Own weights see the mask after the veto, are measured as they are and normalised over its tokens.
TEST(CorrectionTest, OwnWeights_AreMeasuredAndNormalised) {
  Small s;
  std::swap(s.old, s.rollout);  // the veto takes the second row
  CorrectionOptions options;
  options.veto = 1e-4;
  options.batch_normalize = true;
  options.own = [](const PackedRows& rows, std::span<const double> old, std::span<const double>) {
    EXPECT_EQ(std::vector<uint8_t>(rows.mask.begin(), rows.mask.end()), (std::vector<uint8_t>{1, 1, 0, 0}));
    Values w(old.size(), std::nan(""));
    w[0] = 1, w[1] = 3;
    return w;
  };
  const CorrectionResult r = rollout_correction(s.rows(), s.old, s.rollout, options);
  EXPECT_EQ(r.weights, (Values{0.5, 1.5, 0, 0}));
  EXPECT_EQ(r.weight_mean, 2.0);
  EXPECT_EQ(r.weight_max, 3.0);
  EXPECT_EQ(r.effective_sample_size, 16.0 / 20);
  options.own = [](const PackedRows&, std::span<const double>, std::span<const double>) { return Values(3, 1.0); };
  EXPECT_THROW(rollout_correction(s.rows(), s.old, s.rollout, options), ValueError);
}

TEST(CorrectionTest, ABatchWithoutTokens_IsDefined) {
  const std::vector<int64_t> offsets = {0, 1};
  const std::vector<uint8_t> mask = {0};
  const Values nan = {std::nan("")};
  CorrectionOptions options;
  options.level = ImportanceLevel::kSequence;
  options.batch_normalize = true;
  options.rejections = parse_rejection_rules("seq_max_k2", "1.0");
  const CorrectionResult r = rollout_correction({offsets, mask}, nan, nan, options);
  EXPECT_EQ(r.weights, Values(1, 0.0));
  EXPECT_EQ(r.weight_mean, 0.0);
  EXPECT_EQ(r.rejected_tokens, 0.0);
  EXPECT_EQ(r.norm_factor, 1.0);
}

TEST(CorrectionTest, Parsing_NamesWhatIsWrong) {
  CorrectionOptions options;
  for (const char* bad : {"", "x", "2_1", "0.5_2_3", "1e999", "-1_2", "nan", "2.0x"}) {
    EXPECT_THROW(parse_importance_threshold(bad, &options), ValueError) << bad;
  }
  EXPECT_THROW(parse_importance_level("tokens"), ValueError);
  EXPECT_EQ(parse_importance_level("null"), ImportanceLevel::kNone);
  for (const auto& [rules, thresholds] : std::vector<std::pair<std::string, std::string>>{{"", "1"},
                                                                                          {"seq_max_k1", "2"},
                                                                                          {"token_k2", "0.1_0.2"},
                                                                                          {"token_k1", "0.5"},
                                                                                          {"token_k1", "0_2"},
                                                                                          {"token_k1,token_k2", "1,2,3"}}) {
    EXPECT_THROW(parse_rejection_rules(rules, thresholds), ValueError) << rules << " " << thresholds;
  }
}

TEST(CorrectionTest, OffPolicyMask_DropsOnlyNegativeRowsThatDrifted) {
  const std::vector<int64_t> offsets = {0, 2, 4, 6, 6};
  const std::vector<uint8_t> mask = {1, 1, 1, 1, 1, 0};
  const Values reference(6, -1.0), current = {-3, -3, -3, -3, -1, std::nan("")}, advantages = {-1, -1, 1, 1, -1, std::nan("")};
  EXPECT_EQ(off_policy_sequence_mask({offsets, mask}, reference, current, advantages, 0.5), (Values{0, 0, 1, 1, 1, 1}));
}

TEST(MetricsTest, LogProbGap_EqualsVerl) {
  for (const Case& c : rl_test::golden_cases("rollout", "rollout/diagnostics")) {
    const LogProbGap gap = log_prob_gap(golden().rows(), c.input("rollout_log_prob"), c.input("old_log_prob"));
    rl_test::expect_close(gap.kl(), c.metric("kl"), c.name + " kl");
    rl_test::expect_close(gap.k3(), c.metric("k3_kl"), c.name + " k3");
    rl_test::expect_close(gap.chi2_token(), c.metric("chi2_token"), c.name + " chi2_token");
    // Row means run over the empty row too in verl: it adds a chi2 of 0 and a perplexity of 1.
    rl_test::expect_close(gap.chi2_sequence() * 9 / 10, c.metric("chi2_seq"), c.name + " chi2_seq");
    rl_test::expect_close((gap.from_perplexity() * 9 + 1) / 10, c.metric("rollout_ppl"), c.name + " rollout_ppl");
    rl_test::expect_close((gap.to_perplexity() * 9 + 1) / 10, c.metric("training_ppl"), c.name + " training_ppl");
  }
}

TEST(MetricsTest, LogProbGap_HasTheNamedFigures) {
  const Small s;
  const LogProbGap gap = log_prob_gap(s.rows(), s.rollout, s.old);  // differences 0.5, -1, 11
  EXPECT_NEAR(gap.mean_absolute(), 12.5 / 3, 1e-15);
  EXPECT_EQ(gap.max_absolute, 11.0);
  EXPECT_NEAR(gap.ratio_above_2_share(), 2.0 / 3, 1e-15);
  const double a = std::exp(0.5), b = std::exp(-1.0), c = std::exp(11.0);
  EXPECT_NEAR(gap.effective_sample_size(), (a + b + c) * (a + b + c) / (3 * (a * a + b * b + c * c)), 1e-14);
}

TEST(MetricsTest, LogProbGap_MergesAndIsDefinedForNothing) {
  const auto& g = golden();
  const Values &from = g.input("mild/rollout"), &to = g.input("mild/old");
  const LogProbGap whole = log_prob_gap(g.rows(), from, to);
  LogProbGap merged;
  EXPECT_EQ(merged.kl(), 0.0);
  EXPECT_EQ(merged.effective_sample_size(), 0.0);
  EXPECT_EQ(merged.chi2_sequence(), 0.0);
  for (int64_t i = 0; i < 10; ++i) {
    const std::vector<int64_t> offsets = {0, 17};
    const auto part = [i](const auto& values) { return std::span(values).subspan(i * 17, 17); };
    merged.merge(log_prob_gap({offsets, part(g.mask)}, part(from), part(to)));
  }
  rl_test::expect_close(merged.k3(), whole.k3(), "k3", 1e-14);
  rl_test::expect_close(merged.chi2_sequence(), whole.chi2_sequence(), "chi2", 1e-14);
  EXPECT_EQ(merged.max_absolute, whole.max_absolute);
  EXPECT_EQ(merged.tokens, 94.0);
}

}  // namespace
}  // namespace weft
