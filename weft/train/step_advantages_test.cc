#include "weft/train/step_advantages.h"

#include <cmath>

#include "weft/base/error.h"
#include "weft/base/math.h"
#include "weft/train/test_runs.h"

namespace weft {
namespace {

// Two prompts with two responses each, of 2, 3, 1 and 4 tokens; rewards 1, 0, 2, 2.
class StepAdvantagesTest : public RunTest {
 protected:
  StepAdvantagesTest() {
    const int lengths[] = {2, 3, 1, 4};
    const double rewards[] = {1, 0, 2, 2};
    for (size_t i = 0; i < 4; ++i) {
      Trajectory t;
      const auto n = static_cast<size_t>(lengths[i]);
      t.prompt_ids = {3, 4};
      t.response_ids.assign(n, 5);
      t.response_mask.assign(n, 1);
      t.rollout_log_probs.assign(n, -1.0f);
      t.reward = rewards[i];
      t.reward_valid = true;
      t.finish_reason = i == 3 ? "length" : "stop";
      data_.samples.push_back({std::move(t), ""});
      data_.old_log_probs.emplace_back(n, -1.0f);
    }
    data_.index();
  }
  MetricsRow compute(std::vector<std::string> more, double kl_coef = 0.5) {
    more.insert(more.end(), {"rollout.n=2", "data.max_response_length=4"});
    MetricsRow row;
    data_.index();
    compute_advantages(recipe("unused", more), registry_, kl_coef, data_, row);
    return row;
  }

  StepData data_;
};

TEST_F(StepAdvantagesTest, GroupMeansAndMasks) {
  compute({"algorithm.norm_adv_by_std_in_grpo=false", "actor.mask_truncated=true"});
  EXPECT_EQ(data_.advantages, (std::vector<std::vector<double>>{{0.5, 0.5}, {-0.5, -0.5, -0.5}, {0}, {0, 0, 0, 0}}));
  EXPECT_EQ(data_.masks[3], (std::vector<uint8_t>{0, 0, 0, 0}));
  EXPECT_EQ(data_.masks[1], (std::vector<uint8_t>{1, 1, 1}));
  EXPECT_TRUE(data_.weights.empty());
}

TEST_F(StepAdvantagesTest, OverlongPunishmentEntersTheGroups) {
  const MetricsRow row = compute({"algorithm.norm_adv_by_std_in_grpo=false", "reward.overlong_buffer.enable=true",
                                  "reward.overlong_buffer.len=2", "reward.overlong_buffer.penalty_factor=0.5"});
  // Of 3 tokens: -(3 - 2) / 2 * 0.5 = -0.25; of 4: -0.5.
  EXPECT_EQ(data_.advantages, (std::vector<std::vector<double>>{{0.625, 0.625}, {-0.625, -0.625, -0.625}, {0.25}, {-0.25, -0.25, -0.25, -0.25}}));
  EXPECT_EQ(row.find("reward/overlong_penalty"), -0.1875);
  EXPECT_EQ(row.find("reward/overlong_share"), 0.5);
  EXPECT_EQ(data_.samples[3].trajectory.reward, 2.0);  // the raw reward stays in the record
}

TEST_F(StepAdvantagesTest, ReMaxSubtractsTheGreedyReward) {
  data_.baselines = {0.25, NAN};
  compute({"algorithm.adv_estimator=remax"});
  EXPECT_EQ(data_.advantages, (std::vector<std::vector<double>>{{0.75, 0.75}, {-0.25, -0.25, -0.25}, {0}, {0, 0, 0, 0}}));
  EXPECT_EQ(data_.masks[2], std::vector<uint8_t>{0});  // without a baseline there is nothing to learn
}

TEST_F(StepAdvantagesTest, VetoTakesTheWholeResponse) {
  data_.old_log_probs[1][2] = -12.0f;
  const MetricsRow row = compute({"algorithm.rollout_correction.rollout_token_veto_threshold=1e-4"});
  EXPECT_EQ(data_.masks[1], (std::vector<uint8_t>{0, 0, 0}));
  EXPECT_EQ(data_.masks[0], (std::vector<uint8_t>{1, 1}));
  EXPECT_EQ(row.find("rollout_corr/rejected_rows"), 0.25);
  EXPECT_TRUE(data_.weights.empty());
}

TEST_F(StepAdvantagesTest, OwnCorrectionGivesTheWeights) {
  registry_.corrections["twice"] = [](const PackedRows& rows, std::span<const double> old, std::span<const double> rollout) {
    std::vector<double> w(rows.mask.size());
    for (size_t t = 0; t < w.size(); ++t) w[t] = 2.0 + old[t] - rollout[t];
    return w;
  };
  const Recipe base = recipe("unused", {"rollout.n=2"});
  Recipe r = base;
  r.algorithm.rollout_correction.rollout_is = "twice";
  data_.old_log_probs[0][1] = -0.5f;
  MetricsRow row;
  compute_advantages(r, registry_, 0, data_, row);
  EXPECT_EQ(data_.weights[0], (std::vector<double>{2.0, 2.5}));
  registry_.corrections["twice"] = [](const PackedRows&, std::span<const double>, std::span<const double>) { return std::vector<double>(3); };
  EXPECT_THROW(compute_advantages(r, registry_, 0, data_, row), ValueError);
}

TEST_F(StepAdvantagesTest, TeacherGapIsAddedAfterTheEstimator) {
  data_.teacher_log_probs = data_.old_log_probs;
  data_.teacher_log_probs[0][1] = -0.5f;
  const MetricsRow row = compute({"algorithm.norm_adv_by_std_in_grpo=false", "algorithm.teacher_kl_coef=2"});
  EXPECT_EQ(data_.advantages[0], (std::vector<double>{0.5, 1.5}));
  EXPECT_EQ(data_.advantages[1], (std::vector<double>{-0.5, -0.5, -0.5}));
  EXPECT_EQ(row.find("distill/kl"), -0.05);  // (old - teacher) over 10 tokens
}

TEST_F(StepAdvantagesTest, NoTokenThatCountsHasNoKl) {
  data_.ref_log_probs = data_.old_log_probs;
  for (ScoredSample& s : data_.samples) s.trajectory.reward_valid = false;
  compute({"algorithm.use_kl_in_reward=true"});
  EXPECT_TRUE(std::isnan(data_.reference_kl));
}

TEST_F(StepAdvantagesTest, KlInTheRewardIsMeasuredWithoutItsCoefficient) {
  data_.ref_log_probs = data_.old_log_probs;
  data_.ref_log_probs[0] = {-2.0f, -1.0f};
  const MetricsRow row = compute({"algorithm.norm_adv_by_std_in_grpo=false", "algorithm.use_kl_in_reward=true"}, 0.5);
  EXPECT_EQ(data_.reference_kl, 0.125);                      // one of four responses has a mean of 0.5
  EXPECT_EQ(data_.advantages[0], (std::vector<double>{0.25, 0.25}));  // reward 1 - 0.5 * 1 against 0
  EXPECT_EQ(row.find("actor/reward_kl_coef"), 0.5);
}

}  // namespace
}  // namespace weft
