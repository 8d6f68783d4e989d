#include "weft/train/generate.h"

#include <algorithm>
#include <cmath>

#include "weft/train/evaluate.h"
#include "weft/train/test_runs.h"
#include "weft/train/trainer.h"

namespace weft {
namespace {

class GenerateTest : public RunTest {
 protected:
  void SetUp() override {
    recipe_ = recipe("unused", {"data.train_batch_size=5"});
    model_ = load_model(tiny_model(), DType::kF32);
    tokenizer_ = Tokenizer::load(tiny_model());
    source_ = std::make_unique<PromptSource>(recipe_.data.train_files, recipe_, *tokenizer_, 5);
    engine_ = make_engine(recipe_, model_, *model_.model, *tokenizer_, true);
    for (int64_t row : source_->rows()) prompts_.push_back(source_->prompt(row));
  }
  std::vector<ScoredSample> sample() { return generate(*engine_, prompts_, training_params(recipe_), 17, {}); }

  Recipe recipe_;
  LoadedModel model_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<PromptSource> source_;
  std::unique_ptr<Engine> engine_;
  std::vector<Prompt> prompts_;
};

TEST_F(GenerateTest, SamplesComeByPromptAndIndexWhateverTheOrderOfPrompts) {
  const auto forth = sample();
  ASSERT_EQ(forth.size(), 15u);
  for (size_t i = 0; i < forth.size(); ++i) {
    const Trajectory& t = forth[i].trajectory;
    EXPECT_EQ(t.dataset_row, static_cast<int64_t>(i / 3));
    EXPECT_EQ(t.sample_index, static_cast<int64_t>(i % 3));
    EXPECT_EQ(t.prompt_ids, prompts_[i / 3].ids);
    EXPECT_LE(t.response_ids.size(), 5u);
    EXPECT_TRUE(t.finish_reason == "stop" || t.finish_reason == "length") << t.finish_reason;
    EXPECT_EQ(forth[i].text, tokenizer_->decode(t.response_ids, true));
  }
  std::reverse(prompts_.begin(), prompts_.end());
  const auto back = sample();
  for (size_t i = 0; i < forth.size(); ++i) EXPECT_EQ(back[(4 - i / 3) * 3 + i % 3].trajectory, forth[i].trajectory) << i;
}

TEST_F(GenerateTest, ProgressCountsEverySample) {
  int64_t last = 0, total = 0;
  generate(*engine_, prompts_, training_params(recipe_), 17, [&](int64_t done, int64_t all) {
    EXPECT_GE(done, last);
    last = done, total = all;
  });
  EXPECT_EQ(last, 15);
  EXPECT_EQ(total, 15);
}

TEST_F(GenerateTest, StopLeavesTheEngineEmpty) {
  const auto before = sample();
  request_stop(SIGTERM);
  EXPECT_NE(message_of<StoppedError>([&] { sample(); }).find("SIGTERM while generating"), std::string::npos);
  clear_stop_request();
  const auto after = sample();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i].trajectory, after[i].trajectory);
}

TEST_F(GenerateTest, RewardsAreFilledInByName) {
  add_reward("half", [](const RewardRequest& r) {
    RewardValue v = reward_value(r.sample_index == 0 ? 0.5 : 1.0);
    v.applicable = r.sample_index != 2;
    v.extra["seen"] = static_cast<double>(r.row_number);
    return v;
  });
  recipe_ = recipe("unused", {"reward.funcs=half"});
  auto samples = sample();
  score(*make_rewards(recipe_, registry_), *source_, prompts_, samples);
  EXPECT_EQ(samples[3].trajectory.reward, 0.5);
  EXPECT_EQ(samples[3].trajectory.rewards, (std::map<std::string, double>{{"half", 0.5}, {"half/seen", 2.0}}));
  EXPECT_TRUE(samples[3].trajectory.reward_valid);
  EXPECT_FALSE(samples[5].trajectory.reward_valid) << "no reward applies";
  EXPECT_TRUE(samples[5].trajectory.rewards.empty());
}

TEST_F(GenerateTest, EvaluationAveragesBySource) {
  add_reward("index", [](const RewardRequest& r) { return reward_value(static_cast<double>(r.row_number)); });
  recipe_ = recipe("unused", {"reward.funcs=index", "rollout.val_kwargs.n=2", "rollout.val_kwargs.temperature=1.0"});
  const auto rewards = make_rewards(recipe_, registry_);
  const Evaluation e = evaluate({engine_.get()}, Job(), *source_, *rewards, *tokenizer_, validation_params(recipe_), 1, {});
  EXPECT_EQ(e.samples.size(), 10u);
  EXPECT_EQ(e.metrics.find("val/even/index/mean@2"), 3.0);  // rows 1, 3, 5
  EXPECT_EQ(e.metrics.find("val/odd/index/mean@2"), 3.0);   // rows 2, 4
  EXPECT_TRUE(e.metrics.find("val_response_length/mean"));
}

TEST_F(GenerateTest, RecipeBecomesSamplingParameters) {
  const Recipe r =
      recipe("unused", {"rollout.temperature=0.5", "rollout.top_p=0.9", "rollout.top_k=-1", "rollout.min_p=0.1",
                        "rollout.stop=[\"=\"]", "rollout.stop_token_ids=[3]", "rollout.min_tokens=2", "rollout.ignore_eos=true",
                        "rollout.logit_bias={5 = -1.5, 4 = 2.0}", "rollout.val_kwargs.n=4", "rollout.val_kwargs.temperature=0.5"});
  const SamplingParams p = training_params(r);
  EXPECT_EQ(p.n, 3);
  EXPECT_EQ(p.temperature, 0.5);
  EXPECT_EQ(p.top_p, 0.9);
  EXPECT_EQ(p.top_k, 0);
  EXPECT_EQ(p.min_p, 0.1);
  EXPECT_EQ(p.max_tokens, 5);
  EXPECT_EQ(p.min_tokens, 2);
  EXPECT_EQ(p.stop, std::vector<std::string>{"="});
  EXPECT_EQ(p.stop_token_ids, std::vector<int32_t>{3});
  EXPECT_TRUE(p.ignore_eos);
  EXPECT_EQ(p.logit_bias, (std::vector<std::pair<int32_t, float>>{{4, 2.0f}, {5, -1.5f}}));
  const SamplingParams v = validation_params(r);
  EXPECT_EQ(v.n, 4);
  EXPECT_EQ(v.temperature, 0.5);
  EXPECT_EQ(v.top_p, 1.0);
  EXPECT_EQ(v.stop, p.stop);
}

}  // namespace
}  // namespace weft
