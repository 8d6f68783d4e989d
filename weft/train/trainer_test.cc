#include "weft/train/trainer.h"

#include <cmath>
#include <cstring>
#include <thread>

#include "weft/io/jsonl.h"
#include "weft/io/safetensors.h"
#include "weft/io/tensorboard.h"
#include "weft/rollout/engine.h"
#include "weft/train/test_runs.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

class TrainerTest : public RunTest {
 protected:
  void train(const std::string& run, int64_t steps, std::vector<std::string> more = {}) {
    more.push_back(fmt::format("trainer.total_training_steps={}", steps));
    Trainer(recipe(run, more), registry_).run();
  }

  // The vanilla loss, which asks for a stop at its `call`th row (0: never).
  void add_stopping_loss() {
    registry_.policy_losses["stopping"] = {[this](const PolicyRow& row, const PolicyParams& params, PolicyRowResult& out) {
      if (++calls_ == stop_at_) request_stop(SIGTERM);
      builtin_policy_losses().at("vanilla").fn(row, params, out);
    }};
  }

  void expect_initial_weights(const std::string& run, int64_t step) const {
    const LoadedModel m = load_model(tiny_model(), DType::kF32);
    const SafetensorsFile masters(state_file(run, step, "master.safetensors"));
    for (const nn::Parameter* p : m.model->parameters()) {
      const auto bytes = masters.bytes(p->name());
      EXPECT_EQ(std::memcmp(bytes.data(), p->master().data_ptr(), bytes.size()), 0) << p->name();
    }
  }

  std::vector<double> column(const std::string& run, const std::string& name) const {
    std::vector<double> out;
    for (const auto& row : metrics(run))
      if (row.contains(name)) out.push_back(row[name].is_null() ? NAN : row[name].get<double>());
    return out;
  }

  int64_t calls_ = 0, stop_at_ = 0;
};

TEST_F(TrainerTest, SmallestRecipeLeavesAWholeRunDirectory) {
  const std::string path =
      dir_.write("smallest.toml",
                 fmt::format("[model]\npath = \"{}\"\n[data]\ntrain_files = [\"{}\"]\n[reward]\nfuncs = [\"exact_match\"]\n",
                             tiny_model(), dir_.file("train.jsonl")));
  const Recipe r = load_recipe(path,
                               {"data.train_batch_size=4", "data.max_response_length=4", "trainer.total_training_steps=2",
                                "trainer.runs_dir=" + dir_.file("runs")},
                               RecipeUse::kTrain);
  Trainer(r, registry_).run();
  EXPECT_EQ(r.trainer.run_name, "smallest");
  const auto rows = metrics("smallest");
  ASSERT_EQ(rows.size(), 2u);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i]["step"], i + 1);
    EXPECT_EQ(rows[i]["parity/max_abs_diff"], 0.0);
    EXPECT_EQ(rows[i]["parity/unequal_tokens"], 0.0);
    EXPECT_EQ(rows[i]["parity/unequal_routes"], 0.0);
    EXPECT_GT(rows[i]["parity/tokens"], 0.0);
    EXPECT_TRUE(rows[i].contains("reward/exact_match/mean"));
    EXPECT_TRUE(rows[i].contains("moe/load/1/3"));
  }
  const Recipe again = load_recipe(run_file("smallest", "recipe.toml"), {}, RecipeUse::kTrain);
  EXPECT_EQ(again.trainer.parity, "require");
  EXPECT_EQ(again.rollout.n, r.rollout.n);
  EXPECT_NE(read_bytes(run_file("smallest", "report.html")).find("parity"), std::string::npos);
  const JsonlFile samples(run_file("smallest", "samples/2.jsonl"));
  ASSERT_EQ(samples.size(), 4 * r.rollout.n);
  const auto sample = samples.json(5);
  EXPECT_EQ(sample["response_ids"].size(), sample["rollout_log_probs"].size());
  EXPECT_EQ(sample["response_ids"].size(), sample["tokens"].size());
  EXPECT_EQ(sample["step"], 2);
  EXPECT_TRUE(sample["gts"].is_string());
}

TEST_F(TrainerTest, TensorboardHoldsTheMetrics) {
  train("tb", 2, {"trainer.logger=tensorboard"});
  std::map<std::pair<int64_t, std::string>, float> events;
  for (const auto& file : fs::directory_iterator(run_file("tb", "tensorboard")))
    for (const TensorboardEvent& e : read_tensorboard_file(file.path().string()))
      for (const auto& [tag, value] : e.scalars) events[{e.step, tag}] = value;
  int compared = 0;
  for (const auto& row : metrics("tb"))
    for (const auto& [name, value] : row.items()) {
      if (name == "step") continue;
      const auto it = events.find({row["step"].get<int64_t>(), name});
      ASSERT_NE(it, events.end()) << name;
      EXPECT_EQ(it->second, value.get<float>()) << name;
      ++compared;
    }
  EXPECT_GT(compared, 40);
}

// On a CPU every weight is 1, so a threshold of one half makes each of them exactly that.
TEST_F(TrainerTest, RolloutCorrectionWeighsThePolicyTermOfTheUpdate) {
  train("plain", 1);
  train("halved", 1, {"algorithm.rollout_correction.rollout_is=token", "algorithm.rollout_correction.rollout_is_threshold=0.5"});
  EXPECT_EQ(column("halved", "rollout_corr/is_mean"), std::vector<double>{0.5});
  ASSERT_GT(column("plain", "actor/grad_norm").at(0), 0.0);
  EXPECT_EQ(2.0 * column("halved", "actor/grad_norm").at(0), column("plain", "actor/grad_norm").at(0));
}

TEST_F(TrainerTest, ParityIsZeroUnderEverySamplingOption) {
  train("sampled", 2,
        {"rollout.temperature=0.7", "rollout.top_p=0.9", "rollout.top_k=9", "rollout.min_p=0.02", "rollout.min_tokens=2",
         "rollout.logit_bias={4 = 1.5}", "algorithm.rollout_correction.bypass_mode=false", "actor.recompute=true"});
  for (const char* name : {"parity/max_abs_diff", "parity/unequal_routes", "rollout_corr/max_abs"})
    EXPECT_EQ(column("sampled", name), (std::vector<double>{0, 0})) << name;
}

TEST_F(TrainerTest, TheSkippedPassChangesNoBit) {
  train("auto", 3);
  train("pass", 3, {"algorithm.rollout_correction.bypass_mode=false"});
  expect_same_run("auto", "pass", 3);
}

TEST_F(TrainerTest, ReplayChangesNoBitWhereEachStepHasOneUpdate) {
  train("live", 3);
  train("r3", 3, {"router_replay.mode=R3"});
  train("r2", 3, {"router_replay.mode=R2"});
  expect_same_run("live", "r3", 3);
  EXPECT_EQ(read_bytes(state_file("live", 3, "master.safetensors")), read_bytes(state_file("r2", 3, "master.safetensors")));
  EXPECT_EQ(column("r2", "parity/max_abs_diff"), (std::vector<double>{0, 0, 0}));  // reported, not promised
}

TEST_F(TrainerTest, ThreadsChangeNoBit) {
  train("one", 2);
  train("four", 2, {"trainer.threads=4"});
  set_num_threads(0);
  expect_same_run("one", "four", 2);
}

TEST_F(TrainerTest, ResumedRunEqualsOneThatNeverStopped) {
  const std::vector<std::string> more = {"data.val_files=" + dir_.file("val.jsonl"), "trainer.test_freq=3", "actor.ppo_epochs=2"};
  train("whole", 6, more);
  train("parts", 3, more);
  EXPECT_EQ(column("parts", "step").size(), 5u);  // validation before training and after step 3 has rows of its own
  train("parts", 6, more);
  expect_same_run("whole", "parts", 6);
  EXPECT_EQ(read_bytes(run_file("parts", "checkpoints/latest")), "global_step_6\n");
}

TEST_F(TrainerTest, RowsAfterTheCheckpointAreDroppedAtResume) {
  train("saved", 3, {"trainer.save_freq=1"});
  fs::remove_all(run_file("saved", "checkpoints/global_step_3"));
  std::ofstream(run_file("saved", "checkpoints/latest")) << "global_step_2\n";  // as if it had crashed in step 3's save
  train("saved", 3, {"trainer.save_freq=1"});
  train("straight", 3, {"trainer.save_freq=1"});
  expect_same_run("straight", "saved", 3);
}

TEST_F(TrainerTest, ARunDirectoryHasOneProcess) {
  const RunDir running(recipe("busy"), {});
  try {
    train("busy", 1);
    ADD_FAILURE() << "two processes in one directory";
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("another process is running in"), std::string::npos) << e.what();
  }
}

TEST_F(TrainerTest, WhatAKilledSaveLeftIsRemoved) {
  train("killed", 1);
  fs::create_directories(run_file("killed", "checkpoints/global_step_2.tmp-123/state"));
  train("killed", 2);
  EXPECT_FALSE(fs::exists(run_file("killed", "checkpoints/global_step_2.tmp-123")));
  EXPECT_TRUE(fs::exists(state_file("killed", 2, "progress.json")));
}

TEST_F(TrainerTest, ResponsesThatLeaveNoRoomForAPromptAreRefused) {
  EXPECT_THROW(train("long", 1, {"data.max_response_length=100000"}), UsageError);
}

// Without any reward there is no mean.
TEST_F(TrainerTest, NoRewardIsNotZero) {
  add_reward("none", [](const RewardRequest&) {
    RewardValue v;
    v.applicable = false;
    return v;
  });
  train("none", 1, {"reward.funcs=none"});
  const nlohmann::json row = metrics("none").at(0);
  EXPECT_FALSE(row.contains("reward/mean"));
  EXPECT_FALSE(row.contains("actor/entropy"));
  EXPECT_EQ(row.at("reward/valid_share").get<double>(), 0);
}

class StopTest : public TrainerTest, public ::testing::WithParamInterface<std::vector<std::string>> {};

TEST_P(StopTest, BetweenUpdatesThenResumeEqualsARunThatNeverStopped) {
  add_stopping_loss();
  std::vector<std::string> more = {"actor.loss_mode=stopping", "actor.ppo_epochs=2",
                                   "actor.mini_batch_size=2",  "actor.max_tokens_per_micro_batch=25",
                                   "trainer.save_freq=1",      "actor.shuffle=true"};
  more.insert(more.end(), GetParam().begin(), GetParam().end());
  train("whole", 3, more);
  const int64_t rows_a_step = calls_ / 3;
  ASSERT_EQ(rows_a_step,
            4 * 3 * 2 * 2);  // prompts, samples, epochs; once for gradients, once for the report of each update's 6 rows
  // In the first and the third of the second step's four updates, and in the last row of all that has gradients.
  for (int64_t stop_at : {rows_a_step + 2, rows_a_step + rows_a_step / 2 + 3, 3 * rows_a_step - 6}) {
    const std::string run = fmt::format("stopped_{}", stop_at);
    calls_ = 0, stop_at_ = stop_at;
    std::string text;
    try {
      train(run, 3, more);
      ADD_FAILURE() << "did not stop";
    } catch (const StoppedError& e) {
      EXPECT_EQ(e.exit_code(), kExitStopped);
      text = e.what();
    }
    EXPECT_NE(text.find("SIGTERM"), std::string::npos) << text;
    EXPECT_NE(text.find("run the same command"), std::string::npos) << text;
    const int64_t done = (stop_at - 1) / rows_a_step;
    EXPECT_EQ(read_bytes(run_file(run, "checkpoints/latest")), fmt::format("global_step_{}\n", done));
    EXPECT_TRUE(fs::exists(state_file(run, done, "trajectories.bin")));
    EXPECT_LT(calls_, stop_at + 6) << "went on after the stop";
    clear_stop_request();
    stop_at_ = 0;
    train(run, 3, more);
    expect_same_run("whole", run, 3);
  }
}

using Words = std::vector<std::string>;
INSTANTIATE_TEST_SUITE_P(
    Modes, StopTest,
    ::testing::Values(Words{}, Words{"router_replay.mode=R3", "actor.use_kl_loss=true"},
                      Words{"router_replay.mode=R2", "algorithm.use_kl_in_reward=true"},
                      Words{"algorithm.filter_groups.enable=true", "algorithm.adv_estimator=remax",
                            "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=20",
                            "teacher.path=" + tiny_model()}),
    [](const auto& p) {
      return std::vector<std::string>({"disabled", "R3_kl_loss", "R2_kl_reward", "remax_sampling_teacher"})[p.index];
    });

TEST_F(TrainerTest, StopInGenerationThenResumeEqualsARunThatNeverStopped) {
  train("whole", 2);
  request_stop(SIGINT);
  const std::string text = message_of<StoppedError>([&] { train("stopped", 2); });
  EXPECT_NE(text.find("SIGINT while generating"), std::string::npos) << text;
  EXPECT_EQ(read_bytes(run_file("stopped", "checkpoints/latest")), "global_step_0\n");
  EXPECT_TRUE(fs::exists(run_file("stopped", "report.html")));
  clear_stop_request();
  train("stopped", 2);
  expect_same_run("whole", "stopped", 2);
}

TEST_F(TrainerTest, StopInValidationThenResumeValidatesAgain) {
  const Words more = {"data.val_files=" + dir_.file("val.jsonl"), "trainer.test_freq=1"};
  train("whole", 1, more);
  request_stop(SIGTERM);
  EXPECT_THROW(train("stopped", 1, more), StoppedError);
  clear_stop_request();
  train("stopped", 1, more);
  expect_same_run("whole", "stopped", 1);
  ASSERT_EQ(column("stopped", "val_response_length/mean").size(), 2u);
}

// Stops at moments that a clock chooses: wherever they fall, nothing is lost.
TEST_F(TrainerTest, StopsAtAnyMomentLoseNothing) {
  const Words more = {"data.val_files=" + dir_.file("val.jsonl"), "trainer.test_freq=1", "actor.ppo_epochs=2",
                      "actor.mini_batch_size=2"};
  train("whole", 4, more);
  int stopped = 0;
  for (int attempt = 0; attempt < 12; ++attempt) {
    clear_stop_request();
    std::thread clock([attempt] {
      std::this_thread::sleep_for(std::chrono::milliseconds(12 + 7 * attempt));
      request_stop(SIGTERM);
    });
    bool done = false;
    try {
      train("stopped", 4, more);
      done = true;
    } catch (const StoppedError&) {
      ++stopped;
    }
    clock.join();
    if (done) break;
  }
  clear_stop_request();
  train("stopped", 4, more);
  expect_same_run("whole", "stopped", 4);
  EXPECT_GT(stopped, 0);
}

TEST_F(TrainerTest, KlInTheLossGrowsFromZero) {
  train("kl", 4, {"actor.use_kl_loss=true", "actor.kl_loss_coef=0.1", "actor.optim.lr=0.05"});
  const auto kl = column("kl", "actor/kl_loss");
  ASSERT_EQ(kl.size(), 4u);
  EXPECT_EQ(kl[0], 0.0);
  for (size_t i = 1; i < kl.size(); ++i) EXPECT_GT(kl[i], 0.0);
}

TEST_F(TrainerTest, KlInTheRewardGrowsFromZeroAndChangesAdvantages) {
  train("without", 3, {"actor.optim.lr=0.05"});
  train("kl", 3, {"algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.5", "actor.optim.lr=0.05"});
  const auto penalty = column("kl", "actor/reward_kl_penalty");
  ASSERT_EQ(penalty.size(), 3u);
  EXPECT_EQ(penalty[0], 0.0);
  EXPECT_NE(penalty[1], 0.0);
  EXPECT_EQ(column("kl", "actor/grad_norm")[0], column("without", "actor/grad_norm")[0]);
  EXPECT_NE(read_bytes(state_file("kl", 3, "master.safetensors")), read_bytes(state_file("without", 3, "master.safetensors")));
}

TEST_F(TrainerTest, RewardThatIsNotANumberStopsAndNamesTheRow) {
  add_reward("broken", [](const RewardRequest& r) { return reward_value(r.row_number == 3 && r.sample_index == 1 ? NAN : 0.5); });
  const std::string text = message_of<ValueError>([&] { train("nan", 4, {"reward.funcs=broken"}); });
  EXPECT_NE(text.find("train.jsonl"), std::string::npos) << text;
  EXPECT_NE(text.find("3"), std::string::npos) << text;
  EXPECT_NE(text.find("sample 1"), std::string::npos) << text;
}

TEST_F(TrainerTest, DroppedRewardIsOutOfStatisticsAndDenominators) {
  add_reward("broken", [](const RewardRequest& r) { return r.sample_index == 1 ? reward_value(NAN) : even_digits(r); });
  train("drop", 2, {"reward.funcs=broken", "reward.on_nan=drop"});
  for (const auto& row : metrics("drop")) {
    EXPECT_DOUBLE_EQ(row["reward/valid_share"], 2.0 / 3.0);
    for (const auto& [name, value] : row.items()) EXPECT_FALSE(value.is_null()) << name;
  }
  add_reward("none", [](const RewardRequest&) { return reward_value(NAN); });
  train("all", 1, {"reward.funcs=none", "reward.on_nan=drop", "actor.optim.weight_decay=0"});
  expect_initial_weights("all", 1);
}

TEST_F(TrainerTest, GroupsWithEqualRewardsChangeNothing) {
  add_reward("equal", [](const RewardRequest&) { return reward_value(0.7); });
  train("equal", 1, {"reward.funcs=equal", "actor.optim.weight_decay=0"});
  EXPECT_EQ(column("equal", "actor/grad_norm"), std::vector<double>{0});
  EXPECT_EQ(column("equal", "reward/frac_zero_std"), std::vector<double>{1});
  expect_initial_weights("equal", 1);
}

TEST_F(TrainerTest, TruncatedResponsesCanBeMasked) {
  const Words none_ends = {"rollout.logit_bias={2 = -100.0}", "actor.optim.weight_decay=0"};
  Words masked = none_ends;
  masked.push_back("actor.mask_truncated=true");
  train("kept", 1, none_ends);
  train("masked", 1, masked);
  EXPECT_EQ(column("masked", "response_length/clip_ratio"), std::vector<double>{1});
  EXPECT_GT(column("kept", "actor/grad_norm")[0], 0);
  EXPECT_EQ(column("masked", "actor/grad_norm"), std::vector<double>{0});
  expect_initial_weights("masked", 1);
}

TEST_F(TrainerTest, ValidationIsLoggedBySource) {
  train("val", 2,
        {"data.val_files=" + dir_.file("val.jsonl"), "trainer.test_freq=1", "rollout.val_kwargs.n=2",
         "rollout.val_kwargs.temperature=1.0"});
  const auto rows = metrics("val");
  std::vector<int64_t> steps;
  for (const auto& row : rows)
    if (row.contains("val/even/test/mean@2") && row.contains("val/odd/test/mean@2")) steps.push_back(row["step"].get<int64_t>());
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 1, 2}));
}

TEST_F(TrainerTest, OldCheckpointsArePruned) {
  train("prune", 4, {"trainer.save_freq=1", "trainer.max_ckpt_to_keep=2"});
  std::vector<std::string> names;
  for (const auto& e : fs::directory_iterator(run_file("prune", "checkpoints"))) names.push_back(e.path().filename().string());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"global_step_3", "global_step_4", "latest"}));
}

TEST_F(TrainerTest, CheckpointLoadsAndGeneratesAsTheRunDid) {
  const Words val = {"data.val_files=" + dir_.file("val.jsonl"), "trainer.test_freq=1", "trainer.total_training_steps=2"};
  Trainer trainer(recipe("saved", val), registry_);
  trainer.run();
  const MetricsRow before = trainer.validate();
  Words from = val;
  from.push_back("model.path=" + run_file("saved", "checkpoints/global_step_2/huggingface"));
  const MetricsRow after = Trainer(recipe("other", from), registry_).validate();
  EXPECT_EQ(before.entries(), after.entries());
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"})
    EXPECT_TRUE(fs::exists(run_file("saved", std::string("checkpoints/global_step_2/huggingface/") + name))) << name;
}

TEST_F(TrainerTest, OtherDataAtResumeIsRefused) {
  train("run", 1);
  dir_.write("train.jsonl", arithmetic_rows(20));
  const std::string text = message_of<ValueError>([&] { train("run", 2); });
  EXPECT_NE(text.find("other data.train_files"), std::string::npos) << text;
}

TEST_F(TrainerTest, BatchLargerThanTheDataIsRefused) {
  const std::string text = message_of<UsageError>([&] { train("run", 1, {"data.train_batch_size=17"}); });
  EXPECT_NE(text.find("17"), std::string::npos) << text;
  EXPECT_NE(text.find("16"), std::string::npos) << text;
}

TEST_F(TrainerTest, Bfloat16KeepsParity) {
  train("bf16", 2, {"actor.param_dtype=bfloat16"});
  EXPECT_EQ(column("bf16", "parity/max_abs_diff"), (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace weft
