#include "weft/rl/advantage.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "weft/base/error.h"
#include "weft/rl/golden_test_util.h"
#include "weft/rl/grpo.h"
#include "weft/rl/kl.h"

namespace weft {
namespace {

using rl_test::Case;
using rl_test::Golden;
using rl_test::golden;
using rl_test::Values;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Rows that have a signal by our rule: a group of two or more with different rewards.
std::vector<bool> informative(const Values& rewards, const std::vector<int64_t>& groups) {
  std::vector<bool> out(rewards.size(), false);
  for (size_t i = 0; i < rewards.size(); ++i) {
    for (size_t j = 0; j < rewards.size(); ++j) {
      if (groups[i] == groups[j] && rewards[i] != rewards[j]) out[i] = true;
    }
  }
  return out;
}

TEST(AdvantageTest, Estimators_EqualVerl) {
  // The longer names first: a case belongs to the first one it starts with.
  const std::vector<std::pair<std::string, std::string>> ours = {
      {"adv/reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline"},
      {"adv/reinforce_plus_plus", "reinforce_plus_plus"},
      {"adv/grpo_vectorized", "grpo"},
      {"adv/grpo_nostd", "grpo"},
      {"adv/grpo_passk", ""},  // not ours
      {"adv/grpo", "grpo"},
      {"adv/rloo", "rloo"},
      {"adv/opo", "opo"},
      {"adv/gpg", "gpg"},
      {"adv/remax", "remax"},
      {"adv/gae", "gae"},
      {"adv/gdpo", ""},                    // not ours
      {"adv/optimal_token_baseline", ""},  // not ours
      {"adv/masked_whiten", ""},           // own test
      {"adv/adaptive_kl", ""},             // own test
  };
  const AdvantageRegistry registry = builtin_advantages();
  const Golden& g = golden();
  int covered = 0;
  for (const Case& c : rl_test::golden_cases("advantage", "adv/")) {
    std::string name = "missing";
    for (const auto& [prefix, estimator] : ours) {
      if (!c.name.starts_with(prefix)) continue;
      name = estimator;
      break;
    }
    ASSERT_NE(name, "missing") << c.name;
    if (name.empty()) continue;
    AdvantageBatch batch;
    batch.rows = g.rows();
    const std::string token_rewards = c.inputs.at("token_level_rewards").get<std::string>();
    const Values rewards = g.all_position_sums(token_rewards);
    std::vector<int64_t> groups = g.group;
    if (c.has_input("index") && c.inputs.at("index") == "group7") groups.assign(c.input("index").begin(), c.input("index").end());
    batch.rewards = rewards;
    batch.groups = groups;
    batch.token_rewards = g.input(token_rewards);
    if (c.has_input("values")) batch.values = c.input("values");
    if (c.has_input("reward_baselines")) batch.reward_baselines = c.input("reward_baselines");
    AdvantageParams p;
    p.norm_adv_by_std_in_grpo = !c.name.starts_with("adv/grpo_nostd");
    p.gamma = c.number("gamma", 1.0);
    p.lam = c.number("lam", 1.0);
    const Advantages result = find_advantage(registry, name)(batch, p);
    Values expected = c.outputs.at("advantages");
    // What verl leaves outside the mask, and what it gives to groups without a signal, is 0 here.
    const std::vector<bool> signal = informative(rewards, groups);
    const bool by_group = name == "grpo" || name == "rloo" || name == "opo" || name == "gpg";
    for (int64_t t = 0; t < 170; ++t) {
      if (!g.mask[t] || (by_group && !signal[t / 17])) expected[t] = 0.0;
    }
    const double tolerance = c.name.starts_with("adv/grpo_vectorized") ? 1e-6 : 1e-7;
    rl_test::expect_close(result.advantages, expected, c.name, tolerance);
    if (c.outputs.contains("returns")) {
      Values returns = c.outputs.at("returns");
      for (int64_t t = 0; t < 170; ++t) returns[t] = g.mask[t] ? returns[t] : 0.0;
      rl_test::expect_close(result.returns, returns, c.name + " returns");
    }
    ++covered;
  }
  EXPECT_EQ(covered, 40);
}

TEST(AdvantageTest, Whiten_EqualsVerl) {
  for (const Case& c : rl_test::golden_cases("advantage", "adv/masked_whiten")) {
    const Values out = whiten(golden().rows(), c.input("values"), c.params.at("shift_mean").get<bool>());
    Values expected = c.outputs.at("out");
    for (int64_t t = 0; t < 170; ++t) expected[t] = golden().mask[t] ? expected[t] : 0.0;
    rl_test::expect_close(out, expected, c.name);
  }
}

TEST(AdvantageTest, GrpoAndRloo_EqualTrlAndSwift) {
  int covered = 0;
  for (const auto& [file, prefix] :
       std::vector<std::pair<std::string, std::string>>{{"trl", "trl/adv_"}, {"trl", "trl/rloo_adv"}, {"swift", "swift/adv_"}}) {
    for (const Case& c : rl_test::golden_cases(file, prefix)) {
      const std::string scale = c.text("scale_rewards");
      const bool rloo = prefix == "trl/rloo_adv" || c.text("advantage_estimator") == "rloo";
      const bool another_definition = scale == "batch" || c.text("multi_objective_aggregation") == "normalize_then_sum" ||
                                      c.text("advantage_estimator").starts_with("reinforce") ||
                                      c.name == "swift/adv_grpo_group_n5_nan" ||  // a row without a score counts as 0 there
                                      (c.params.contains("normalize_advantages") && c.params["normalize_advantages"].get<bool>());
      if (another_definition) continue;
      Values rewards = c.input("rewards");
      if (c.has_input("weights")) {  // two reward functions, NaN where one does not apply
        const Values& weights = c.input("weights");
        Values sums(10, kNan);
        for (size_t i = 0; i < rewards.size(); ++i) {
          if (std::isnan(rewards[i])) continue;
          sums[i / 2] = (std::isnan(sums[i / 2]) ? 0.0 : sums[i / 2]) + weights[i % 2] * rewards[i];
        }
        rewards = sums;
      }
      const double beta = c.number("beta", 0.0);
      if (beta != 0.0) {  // over the whole completion, tool spans too
        std::vector<uint8_t> mask(170, 0);
        for (int64_t t = 0; t < 170; ++t) mask[t] = static_cast<double>(t % 17) < c.input("length")[t / 17];
        const PackedRows rows{golden().offsets, mask};
        const Values kl =
            kl_in_reward(parse_kl_kind("k1"), beta, rows, c.input("old_per_token_logps"), c.input("ref_per_token_logps"));
        const Values sums = row_sums(rows, kl);
        for (size_t i = 0; i < rewards.size(); ++i) rewards[i] -= sums[i];
      }
      const auto n = static_cast<int64_t>(c.number("num_generations", 1));
      std::vector<int64_t> groups;
      for (int64_t i = 0; i < 10; ++i) groups.push_back(i / n);
      const Values out = rloo ? rloo_advantages(rewards, groups) : grpo_advantages(rewards, groups, scale == "group", 1e-4);
      rl_test::expect_close(out, c.outputs.at("advantages"), c.name);
      ++covered;
    }
  }
  EXPECT_EQ(covered, 16);
}

TEST(GrpoTest, GroupOfOneAndEqualRewards_GiveExactlyZero) {
  const Values one = {0.3}, equal(7, 0.7);
  const std::vector<int64_t> first = {5}, same(7, 2);
  const Values lengths1 = {4}, lengths7(7, 3.0);
  for (const bool norm : {false, true}) {
    EXPECT_EQ(grpo_advantages(one, first, norm), Values(1, 0.0));
    EXPECT_EQ(grpo_advantages(equal, same, norm), Values(7, 0.0));
  }
  EXPECT_EQ(rloo_advantages(one, first), Values(1, 0.0));
  EXPECT_EQ(rloo_advantages(equal, same), Values(7, 0.0));
  EXPECT_EQ(opo_advantages(one, first, lengths1), Values(1, 0.0));
  EXPECT_EQ(opo_advantages(equal, same, lengths7), Values(7, 0.0));
  EXPECT_EQ(gpg_advantages(one, first), Values(1, 0.0));
  EXPECT_EQ(gpg_advantages(equal, same), Values(7, 0.0));
  EXPECT_EQ(group_centred(equal, same), Values(7, 0.0));
  EXPECT_EQ(group_centred(one, first), one);
  EXPECT_EQ(fraction_zero_std(equal, same), 1.0);
  EXPECT_EQ(fraction_zero_std(one, first), 0.0);
}

TEST(GrpoTest, DroppedRewards_LeaveTheStatistics) {
  const Values with = {1.0, kNan, 0.0, 0.5, kNan, 2.0}, without = {1.0, 0.0, 0.5, 2.0};
  const std::vector<int64_t> groups = {3, 3, 3, 3, 8, 8}, fewer = {3, 3, 3, 8};
  const Values a = grpo_advantages(with, groups), b = grpo_advantages(without, fewer);
  EXPECT_EQ(a, (Values{b[0], 0.0, b[1], b[2], 0.0, 0.0}));  // the group {NaN, 2} is a group of one
  for (double v : gpg_advantages(with, groups)) EXPECT_FALSE(std::isnan(v));
  for (double v : opo_advantages(with, groups, Values(6, 2.0))) EXPECT_FALSE(std::isnan(v));
  EXPECT_TRUE(grpo_advantages({}, {}).empty());
}

TEST(GrpoTest, RowsWithoutTokens_StillCountInTheirGroup) {
  const Values rewards = {1.0, 0.0};
  const std::vector<int64_t> groups = {0, 0}, offsets = {0, 2, 2};
  const std::vector<uint8_t> mask = {1, 1};
  const Values a = spread_to_tokens({offsets, mask}, grpo_advantages(rewards, groups, false));
  EXPECT_EQ(a, (Values{0.5, 0.5}));
  EXPECT_EQ(opo_advantages(rewards, groups, Values{0, 0}), Values(2, 0.0));
}

TEST(AdvantageTest, Whiten_OfNothingOneOrEqualIsZero) {
  const std::vector<int64_t> offsets = {0, 3};
  const Values values = {0.7, kNan, 0.7};
  for (const std::vector<uint8_t>& mask : {std::vector<uint8_t>{0, 0, 0}, {1, 0, 0}, {1, 0, 1}}) {
    EXPECT_EQ(whiten({offsets, mask}, values), Values(3, 0.0));
  }
}

TEST(AdvantageTest, Estimators_NeverReadOutsideTheMask) {
  const std::vector<int64_t> offsets = {0, 3, 5, 5}, groups = {0, 0, 1};
  const std::vector<uint8_t> mask = {1, 0, 1, 0, 0};
  const Values token = {0.5, kNan, 1.0, kNan, kNan}, rewards = {1.0, 0.0, 0.5}, baselines = {0.1, 0.2, 0.3};
  for (const auto& [name, estimator] : builtin_advantages()) {
    const Advantages out = estimator({{offsets, mask}, rewards, groups, token, token, baselines}, {});
    for (size_t t = 0; t < 5; ++t) {
      EXPECT_TRUE(std::isfinite(out.advantages[t]) && std::isfinite(out.returns[t])) << name;
      if (!mask[t]) {
        EXPECT_EQ(out.advantages[t], 0.0) << name;
      }
    }
  }
}

TEST(AdvantageTest, ReinforceBaseline_DroppedRowLeavesTheWhitening) {
  const std::vector<int64_t> offsets = {0, 2, 4, 6}, fewer_offsets = {0, 2, 4}, groups = {0, 0, 0}, fewer_groups = {0, 0};
  const std::vector<uint8_t> mask(6, 1), fewer_mask(4, 1);
  const Values rewards = {1.0, 0.25, kNan}, fewer = {1.0, 0.25};
  const AdvantageFn estimator = builtin_advantages().at("reinforce_plus_plus_baseline");
  Values expected = estimator({{fewer_offsets, fewer_mask}, fewer, fewer_groups, {}, {}, {}}, {}).advantages;
  expected.resize(6, 0.0);
  EXPECT_EQ(estimator({{offsets, mask}, rewards, groups, {}, {}, {}}, {}).advantages, expected);
}

TEST(AdvantageTest, RewardsOnLastToken_SkipsMaskedOnes) {
  const std::vector<int64_t> offsets = {0, 3, 3, 5};
  const std::vector<uint8_t> mask = {1, 1, 0, 0, 0};
  EXPECT_EQ(rewards_on_last_token({offsets, mask}, Values{2.0, 1.0, 3.0}), (Values{0, 2.0, 0, 0, 0}));
  EXPECT_EQ(rewards_on_last_token({offsets, mask}, Values{kNan, 1.0, 3.0}), Values(5, 0.0));
}

TEST(AdvantageTest, FindAdvantage_NamesTheKnownOnes) {
  try {
    find_advantage(builtin_advantages(), "grpoo");
    FAIL();
  } catch (const ValueError& e) {
    EXPECT_NE(std::string(e.what()).find("reinforce_plus_plus_baseline"), std::string::npos);
  }
}

}  // namespace
}  // namespace weft
