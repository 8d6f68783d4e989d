#include "weft/train/critic.h"
#include "weft/comm/launch.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>

#include "weft/base/error.h"
#include "weft/io/safetensors.h"
#include "weft/train/roles.h"
#include "weft/train/test_runs.h"
#include "weft/train/trainer.h"

namespace weft {
namespace {

const std::string kReward = std::string(WEFT_SOURCE_DIR) + "/models/tiny-reward";

class CriticTest : public RunTest {
 protected:
  std::vector<Trajectory> rows(int count = 5) const {
    std::vector<Trajectory> out;
    for (int i = 0; i < count; ++i) {
      Trajectory t;
      for (int j = 0; j < 3 + i; ++j) t.prompt_ids.push_back(3 + (i * 5 + j * 3) % 12);
      for (int j = 0; j < 1 + i % 3; ++j) t.response_ids.push_back(3 + (i * 7 + j) % 12);
      t.response_mask.assign(t.response_ids.size(), 1);
      t.rollout_log_probs.assign(t.response_ids.size(), 0);
      out.push_back(std::move(t));
    }
    return out;
  }
  void train(const std::string& run, std::vector<std::string> more, int64_t steps) {
    more.push_back(fmt::format("trainer.total_training_steps={}", steps));
    const Recipe r = recipe(run, more);
    const int64_t n = ranks_of_recipe(r);
    if (n == 1) return Trainer(r, registry_).run();
    CommOptions options;
    options.threads_per_rank = 1;
    run_ranks(static_cast<int>(n), options,
              [&](Communicator& world) { Trainer(r, registry_, make_roles(place_roles(r, n), world, actor_sharing(r))).run(); });
  }
};

TEST_F(CriticTest, RewardModelScoresAsTransformersDo) {
  const SafetensorsFile golden(std::string(WEFT_SOURCE_DIR) + "/tests/data/scores.safetensors");
  std::vector<Trajectory> rows;
  std::vector<float> expected;
  for (int i = 0; golden.find(fmt::format("ids/{}", i)); ++i) {
    const auto ids = golden.bytes(fmt::format("ids/{}", i));
    const auto* p = reinterpret_cast<const int32_t*>(ids.data());
    Trajectory t;
    t.prompt_ids.assign(p, p + 2);
    t.response_ids.assign(p + 2, p + ids.size() / 4);
    rows.push_back(std::move(t));
    expected.push_back(*reinterpret_cast<const float*>(golden.bytes(fmt::format("score/{}", i)).data()));
  }
  ASSERT_EQ(rows.size(), 7u);
  std::vector<const Trajectory*> list;
  for (const Trajectory& t : rows) list.push_back(&t);
  for (const int64_t tokens : {1, 7, 1000}) {
    const Recipe r =
        recipe("score", {"reward_model.path=" + kReward, fmt::format("actor.max_tokens_per_micro_batch={}", tokens)});
    const std::vector<float> scores = RewardModel(r, registry_, nullptr).scores(list);
    ASSERT_EQ(scores.size(), expected.size());
    for (size_t i = 0; i < scores.size(); ++i) EXPECT_NEAR(scores[i], expected[i], 2e-5) << i;  // fp32 sums in another order
  }
}

TEST_F(CriticTest, AModelWithoutAScoreIsNoRewardModel) {
  const std::string text =
      message_of<FileError>([&] { RewardModel(recipe("r", {"reward_model.path=" + tiny_model()}), registry_, nullptr); });
  EXPECT_NE(text.find("missing: score.weight"), std::string::npos) << text;
}

// Against central differences, of the score head and of weights at both ends of the trunk.
TEST_F(CriticTest, GradientsAreThoseOfTheValues) {
  LoadedModel m = load_model(kReward, DType::kF32, "cpu", {}, nullptr, {}, ModelHead::kScore);
  const std::vector<Trajectory> trajectories = rows();
  std::vector<const Trajectory*> list;
  for (const Trajectory& t : trajectories) list.push_back(&t);
  const auto weight = [](size_t token) { return 0.3 + 0.1 * static_cast<double>(token % 4); };
  score_backward(*m.model, list, false, [&](const ScoreOutput& o) {
    std::vector<double> g;
    for (size_t i = 0; i < o.values.size(); ++i) g.push_back(weight(i));
    return g;
  });
  const auto loss = [&] {
    double sum = 0;
    const ScoreOutput o = score_forward(*m.model, list);
    EXPECT_EQ(o.offsets.back(), std::ssize(o.values));
    for (size_t i = 0; i < o.values.size(); ++i) sum += weight(i) * o.values[i];
    return sum;
  };
  at::NoGradGuard guard;
  for (const char* name :
       {"score.weight", "model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight"}) {
    nn::Parameter* p = m.model->find_parameter(name);
    ASSERT_TRUE(p) << name;
    double largest = 0;
    for (int64_t i = 0; i < p->numel(); ++i) largest = std::max<double>(largest, std::fabs(p->grad().data_ptr<float>()[i]));
    for (int64_t i = 3; i < p->numel(); i += 1 + p->numel() / 9) {
      float& w = p->master().data_ptr<float>()[i];
      const float before = w, h = 2e-3F;
      w = before + h, p->updated();
      const double up = loss();
      w = before - h, p->updated();
      const double down = loss();
      w = before, p->updated();
      // fp32 values of about 1 leave 1e-7 / 4e-3 of noise.
      EXPECT_NEAR((up - down) / (2.0 * h), p->grad().data_ptr<float>()[i], 2e-2 * largest + 3e-4) << name << " " << i;
    }
  }
}

const std::vector<std::string> kPpo = {
    "algorithm.adv_estimator=gae",  "algorithm.lam=0.9",       "critic.optim.lr=0.003", "actor.use_kl_loss=true",
    "reward_model.path=" + kReward, "reward_model.weight=0.5", "rollout.n=2",           "actor.mini_batch_size=2"};

// Five roles on meshes and ranks of their own report the bits of one rank.
TEST_F(CriticTest, RolesChangeNothing) {
  train("one", kPpo, 1);
  const std::vector<std::vector<std::string>> cases = {
      {"actor.mesh=fsdp=2,tp=2,ep=4"},
      {"actor.mesh=fsdp=2", "actor.ranks=0-1", "rollout.mesh=tp=2", "rollout.ranks=2-3", "reference.mesh=tp=2",
       "reference.ranks=0-1", "critic.mesh=cp=2", "critic.ranks=2-3", "reward_model.mesh=fsdp=1", "reward_model.ranks=4"},
      {"actor.mesh=fsdp=1", "actor.ranks=3", "rollout.mesh=dp=2", "rollout.ranks=0-1", "reference.ranks=3",
       "reference.mesh=fsdp=1", "critic.mesh=fsdp=1,", "critic.ranks=2", "reward_model.mesh=tp=2", "reward_model.ranks=0,1"},
  };
  const nlohmann::json expected = metrics("one").at(0);
  EXPECT_GT(expected.at("critic/vf_loss").get<double>(), 0);
  EXPECT_TRUE(expected.contains("reward/reward_model/mean"));
  for (size_t i = 0; i < cases.size(); ++i) {
    std::vector<std::string> more = kPpo;
    for (std::string text : cases[i]) {
      if (text.ends_with(',')) text.pop_back();
      more.push_back(text);
    }
    const std::string name = fmt::format("case{}", i);
    train(name, more, 1);
    // What is known before the first update, and the first update's values.
    const nlohmann::json row = metrics(name).at(0);
    for (const char* key : {"reward/mean", "reward/reward_model/mean", "parity/unequal_tokens", "response_length/mean"})
      EXPECT_EQ(row.at(key), expected.at(key)) << key << " of " << cases[i][0];
    for (const char* key : {"critic/vf_loss", "critic/vpred_mean", "actor/pg_loss", "critic/grad_norm"})
      EXPECT_NEAR(row.at(key).get<double>(), expected.at(key).get<double>(),
                  1e-5 * (1e-2 + std::fabs(expected.at(key).get<double>())))
          << key << " of " << cases[i][0];
    train(name, more, 3);
    train(name + "whole", more, 3);
    expect_same_run(name, name + "whole", 3);
    for (const char* file : {"master.safetensors", "optimizer.safetensors"}) {
      const std::string at = fmt::format("checkpoints/critic/global_step_3/state/{}", file);
      EXPECT_TRUE(read_bytes(run_file(name, at)) == read_bytes(run_file(name + "whole", at))) << at;
    }
  }
}

// Returns that a trunk can tell apart are learned; values start at zero, for the head does.
TEST_F(CriticTest, LearnsReturns) {
  const Recipe r = recipe("learn", {"algorithm.adv_estimator=gae", "rollout.n=1", "data.train_batch_size=5",
                                    "critic.optim.lr=0.01", "critic.cliprange_value=100"});
  CriticRole critic(r, registry_, nullptr, 100);
  StepData data;
  for (const Trajectory& t : rows(5)) data.samples.push_back({t, ""});
  data.prompts.resize(5);
  data.index();
  data.values = critic.values(data.trajectories);
  for (size_t i = 0; i < 5; ++i) {
    for (float v : data.values[i]) EXPECT_EQ(v, 0);
    data.returns.emplace_back(data.values[i].size(), 1.0 - 0.5 * static_cast<double>(i));
    data.masks.emplace_back(data.values[i].size(), 1);
  }
  const double before = *critic.update(data).find("critic/vf_loss");
  double after = before;
  for (int i = 0; i < 60; ++i) after = *critic.update(data).find("critic/vf_loss");
  EXPECT_LT(after, 0.02 * before);
  const auto values = critic.values(data.trajectories);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(values[i][0], data.returns[i][0], 0.3);
}

// Alone first: the actor waits while the critic learns. What was saved of the critic is a classifier.
TEST_F(CriticTest, WarmsUpAndIsSavedAsASequenceClassifier) {
  std::vector<std::string> more = kPpo;
  more.push_back("trainer.critic_warmup=2");
  train("warm", more, 2);
  EXPECT_FALSE(metrics("warm").back().contains("actor/lr"));
  const LoadedModel actor = load_model(run_file("warm", "checkpoints/global_step_2/huggingface"), DType::kF32),
                    before = load_model(tiny_model(), DType::kF32);
  for (nn::Parameter* p : actor.model->parameters())
    EXPECT_TRUE(p->master().equal(before.model->find_parameter(p->name())->master())) << p->name();
  const std::string saved = run_file("warm", "checkpoints/critic/global_step_2/huggingface");
  EXPECT_NE(read_bytes(saved + "/config.json").find("Qwen3MoeForSequenceClassification"), std::string::npos);
  const Recipe r = recipe("again", {"reward_model.path=" + saved});
  const std::vector<Trajectory> trajectories = this->rows(1);
  EXPECT_EQ(RewardModel(r, registry_, nullptr).scores({&trajectories[0]}).size(), 1u);
}

TEST_F(CriticTest, ResumeWithoutTheCriticSaysSo) {
  train("run", kPpo, 1);
  std::filesystem::remove_all(run_file("run", "checkpoints/critic/global_step_1"));
  EXPECT_NE(message_of<FileError>([&] { train("run", kPpo, 2); }).find("checkpoints/critic/global_step_1"), std::string::npos);
}

TEST_F(CriticTest, ACriticOfAnotherStepIsRefused) {
  std::vector<std::string> more = kPpo;
  more.push_back("trainer.save_freq=1");
  train("run", more, 2);
  const std::string critic = run_file("run", "checkpoints/critic");
  std::filesystem::remove_all(critic + "/global_step_2");
  std::filesystem::copy(critic + "/global_step_1", critic + "/global_step_2", std::filesystem::copy_options::recursive);
  EXPECT_NE(
      message_of<FileError>([&] { train("run", more, 3); }).find("is the critic of step 1, the actor's checkpoint is of step 2"),
      std::string::npos);
}

// As a reward function's: an error, or rows without a reward.
TEST_F(CriticTest, ANotANumberOfTheRewardModelIsNoReward) {
  LoadedModel m = load_model(kReward, DType::kF32, "cpu", {}, nullptr, {}, ModelHead::kScore);
  {
    at::NoGradGuard guard;
    m.model->find_parameter("score.weight")->master().fill_(NAN);
  }
  const std::string dir = dir_.file("nan");
  std::filesystem::create_directories(dir);
  save_model(m, dir);
  const std::vector<std::string> more = {"reward_model.path=" + dir, "reward.on_nan=stop"};
  EXPECT_NE(message_of<ValueError>([&] { train("stop", more, 1); }).find("scores"), std::string::npos);
  train("drop", {more[0], "reward.on_nan=drop"}, 1);
  const nlohmann::json row = metrics("drop").at(0);
  EXPECT_EQ(row.at("reward/valid_share").get<double>(), 0);
  EXPECT_FALSE(row.contains("reward/mean"));
}

}  // namespace
}  // namespace weft
