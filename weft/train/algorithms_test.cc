// Recipes of the named algorithms, from sampling to update; formulas are tested in weft/rl and step_advantages_test.cc.
#include <cmath>

#include "weft/base/error.h"
#include "weft/io/jsonl.h"
#include "weft/train/test_runs.h"
#include "weft/train/trainer.h"

namespace weft {
namespace {

class AlgorithmsTest : public RunTest {
 protected:
  void train(const std::string& run, int64_t steps, std::vector<std::string> more = {}) {
    more.push_back(fmt::format("trainer.total_training_steps={}", steps));
    Trainer(recipe(run, more), registry_).run();
  }
  std::vector<double> column(const std::string& run, const std::string& name) const {
    std::vector<double> out;
    for (const auto& row : metrics(run))
      if (row.contains(name)) out.push_back(row[name].get<double>());
    return out;
  }
  // Responses differ in their reward for prompts of the source "even" only.
  void reward_even_prompts() {
    add_reward("even", [](const RewardRequest& r) {
      return reward_value(r.data_source == "even" ? static_cast<double>(r.sample_index) : 7.0);
    });
  }
};

TEST_F(AlgorithmsTest, DynamicSamplingReplacesGroupsThatDoNotDiffer) {
  reward_even_prompts();
  train("dapo", 2, {"reward.funcs=even", "algorithm.filter_groups.enable=true"});
  EXPECT_EQ(column("dapo", "data/prompts"), (std::vector<double>{4, 4}));
  EXPECT_EQ(column("dapo", "reward/mean"), (std::vector<double>{1, 1}));  // samples 0, 1, 2 of each group
  EXPECT_EQ(column("dapo", "reward/frac_zero_std"), (std::vector<double>{0, 0}));
  const std::vector<double> batches = column("dapo", "filter_groups/batches"), kept = column("dapo", "filter_groups/kept_share");
  EXPECT_GT(batches.at(0), 1);
  EXPECT_LT(kept.at(0), 1);
}

TEST_F(AlgorithmsTest, DynamicSamplingGoesOnWithWhatItHasAtTheBound) {
  reward_even_prompts();
  train("bound", 1, {"reward.funcs=even", "algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_num_gen_batches=1"});
  EXPECT_LT(column("bound", "data/prompts").at(0), 4);
  EXPECT_EQ(column("bound", "reward/mean").at(0), 1);
  add_reward("flat", [](const RewardRequest&) { return reward_value(1.0); });
  try {
    train("flat", 1, {"reward.funcs=flat", "algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_num_gen_batches=2"});
    ADD_FAILURE() << "trained on groups without a signal";
  } catch (const ValueError& e) {
    EXPECT_NE(std::string(e.what()).find("in 2 batches of 4 prompts"), std::string::npos) << e.what();
  }
}

// A step without any group ends the run with all steps before it saved: with another setting it goes on from there.
TEST_F(AlgorithmsTest, DynamicSamplingWithoutAGroupLosesNoStep) {
  int calls = 0;
  add_reward("early", [&calls](const RewardRequest&) { return reward_value(calls < 12 ? ++calls : 0); });
  const std::vector<std::string> early = {"reward.funcs=early", "algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_num_gen_batches=2"};
  try {
    train("late", 2, early);
    ADD_FAILURE() << "trained on groups without a signal";
  } catch (const ValueError& e) {
    EXPECT_NE(std::string(e.what()).find("What came before is saved"), std::string::npos) << e.what();
  }
  train("late", 2, {"reward.funcs=early"});
  EXPECT_EQ(column("late", "reward/mean"), (std::vector<double>{6.5, 0}));
  EXPECT_EQ(metrics("late").size(), 2u);
}

TEST_F(AlgorithmsTest, DynamicSamplingByOneReward) {
  reward_even_prompts();
  add_reward("noise", even_digits);
  train("metric", 1, {"reward.funcs=[\"even\", \"noise\"]", "algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=even"});
  EXPECT_EQ(column("metric", "reward/even/mean").at(0), 1);
}

TEST_F(AlgorithmsTest, ReMaxSamplesAGreedyBaseline) {
  int calls = 0;
  add_reward("counted", [&calls](const RewardRequest&) { return reward_value(calls++ < 4 ? 0.75 : 0.25); });
  std::vector<double> seen;
  registry_.policy_losses["seen"] = {[&seen](const PolicyRow& row, const PolicyParams& params, PolicyRowResult& out) {
    seen.insert(seen.end(), row.advantages.begin(), row.advantages.end());
    builtin_policy_losses().at("vanilla").fn(row, params, out);
  }};
  train("remax", 1, {"reward.funcs=counted", "algorithm.adv_estimator=remax", "rollout.n=1", "actor.loss_mode=seen"});
  EXPECT_EQ(calls, 8);
  EXPECT_EQ(column("remax", "reward/greedy_baseline").at(0), 0.25);
  ASSERT_FALSE(seen.empty());
  for (double a : seen) EXPECT_EQ(a, 0.5);
}

TEST_F(AlgorithmsTest, AdaptiveKlFollowsItsTarget) {
  train("adaptive", 3,
        {"algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=k3", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.kl_coef=0.1",
         "algorithm.kl_ctrl.target_kl=1e-9", "algorithm.kl_ctrl.horizon=12"});
  const std::vector<double> coef = column("adaptive", "actor/reward_kl_coef");
  ASSERT_EQ(coef.size(), 3u);
  EXPECT_DOUBLE_EQ(coef[0], 0.1);
  EXPECT_DOUBLE_EQ(coef[1], 0.08);   // the first step's KL is 0: down by the most, 0.2 * 12 responses / 12
  EXPECT_DOUBLE_EQ(coef[2], 0.096);  // then far above the target: up by the most
}

TEST_F(AlgorithmsTest, FixedKlWeightIsTheRecipesOnResumeToo) {
  train("fixed", 1, {"algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.001"});
  train("fixed", 2, {"algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.5"});
  EXPECT_EQ(column("fixed", "actor/reward_kl_coef"), (std::vector<double>{0.001, 0.5}));
}

TEST_F(AlgorithmsTest, DistillationApproachesTheTeacher) {
  const TemporaryDirectory teacher;
  write_tiny_model(teacher.file("model"), {}, 9);
  const std::string path = "teacher.path=" + teacher.file("model");
  train("distill", 12, {path, "reward.weights=[0]", "actor.optim.lr=0.003"});
  const std::vector<double> gap = column("distill", "distill/kl");
  ASSERT_EQ(gap.size(), 12u);
  EXPECT_GT(gap[0], 0.5);
  EXPECT_LT(0.5 * (gap[10] + gap[11]), 0.8 * gap[0]);
  train("self", 1, {"teacher.path=" + tiny_model()});
  EXPECT_EQ(column("self", "distill/kl"), std::vector<double>{0});
  write_tiny_model(teacher.file("other"), [](nlohmann::ordered_json& c) { c["vocab_size"] = c["vocab_size"].get<int>() + 8; });
  EXPECT_THROW(train("other", 1, {"teacher.path=" + teacher.file("other")}), UsageError);
}

TEST_F(AlgorithmsTest, EachKnobReachesTheUpdate) {
  const std::vector<std::string> base = {"actor.ppo_epochs=3", "actor.optim.lr=0.03", "rollout.n=4"};
  const auto norms = [&](const std::string& run, std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    train(run, 1, more);
    return column(run, "actor/grad_norm");
  };
  const auto plain = norms("plain", {}), kl = norms("kl", {"actor.use_kl_loss=true", "actor.kl_loss_coef=0.5"});
  EXPECT_NE(norms("unbiased", {"actor.use_kl_loss=true", "actor.kl_loss_coef=0.5", "actor.kl_loss_unbiased=true"}), kl);
  EXPECT_NE(norms("masked", {"actor.off_policy_mask_threshold=1e-6"}), plain);
  EXPECT_GT(column("masked", "actor/off_policy_masked").at(0), 0);
  EXPECT_EQ(norms("unmasked", {"actor.off_policy_mask_threshold=1e6"}), plain);
  EXPECT_NE(norms("sapo_sharp", {"actor.loss_mode=sapo", "actor.tau_neg=9"}), norms("sapo", {"actor.loss_mode=sapo"}));
  EXPECT_GT(column("plain", "staleness/max_abs").at(0), 0);
}

}  // namespace
}  // namespace weft
