#include "weft/train/train_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

#include "weft/train/test_runs.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

class TrainStateTest : public RunTest {
 protected:
  void SetUp() override {
    model_ = load_model(tiny_model(), DType::kF32);
    optimizer_ = std::make_unique<Optimizer>(model_.model->parameters(), OptimRecipe{}, 10);
    progress_.step = 7, progress_.updates = 14, progress_.weight_version = 14;
    progress_.cursor = {2, 5};
    progress_.dataset_fingerprint = 0xfedcba9876543210u;
    progress_.values["kl_coef"] = 0.1 + 0.2;
    for (const Optimizer::Slot& s : optimizer_->slots()) s.m.uniform_(-1, 1), s.v.uniform_(0, 1);
    dir = dir_.file("checkpoints");
  }
  void save(int64_t step, int64_t keep = 3) {
    progress_.step = step;
    save_checkpoint(dir, model_, *optimizer_, progress_, keep);
  }
  TrainProgress load(const std::string& where) {
    fresh_ = load_model(tiny_model(), DType::kF32);
    for (nn::Parameter* p : fresh_.model->parameters()) {
      const at::NoGradGuard guard;
      p->master().zero_();
    }
    restored_ = std::make_unique<Optimizer>(fresh_.model->parameters(), OptimRecipe{}, 10);
    return load_checkpoint(where, "", fresh_, *restored_);
  }

  LoadedModel model_, fresh_;
  std::unique_ptr<Optimizer> optimizer_, restored_;
  TrainProgress progress_;
  std::string dir;
};

TEST_F(TrainStateTest, EverythingComesBackBitForBit) {
  StepUnderWay u;
  Trajectory t;
  t.dataset_row = 3, t.sample_index = 1, t.prompt_ids = {1, 4}, t.response_ids = {5, 2}, t.rollout_log_probs = {-0.1f, -0.2f},
  t.response_mask = {1, 1};
  t.finish_reason = "stop", t.reward = 0.1, t.reward_valid = true, t.rewards["test"] = 0.1;
  t.weight_versions = {{14, 0, 2}};
  u.trajectories = {t, t};
  u.trajectories[1].response_ids = {9}, u.trajectories[1].rollout_log_probs = {-3.0f}, u.trajectories[1].response_mask = {1};
  u.trajectories[1].weight_versions = {{14, 0, 1}};
  u.old_log_probs = {{-0.1f, -0.25f}, {-3.0f}};
  u.ref_log_probs = {{-1.0f, -2.0f}, {1e-38f}};
  u.updates_done = 1;
  u.sums = {{"pg_loss", 1.0 / 3.0}, {"metric/parity/max_abs_diff", 0.0}};
  progress_.under_way = u;
  save(7);
  ASSERT_EQ(latest_checkpoint(dir), dir + "/global_step_7");
  const TrainProgress p = load(*latest_checkpoint(dir));
  EXPECT_EQ(p.step, 7);
  EXPECT_EQ(p.updates, 14);
  EXPECT_EQ(restored_->updates(), 14);
  EXPECT_EQ(p.weight_version, 14);
  EXPECT_EQ(p.cursor, progress_.cursor);
  EXPECT_EQ(p.dataset_fingerprint, progress_.dataset_fingerprint);
  EXPECT_EQ(p.values, progress_.values);
  ASSERT_TRUE(p.under_way);
  EXPECT_EQ(p.under_way->trajectories, u.trajectories);
  EXPECT_EQ(p.under_way->old_log_probs, u.old_log_probs);
  EXPECT_EQ(p.under_way->ref_log_probs, u.ref_log_probs);
  EXPECT_EQ(p.under_way->updates_done, 1);
  EXPECT_EQ(p.under_way->sums, u.sums);
  const auto a = model_.model->parameters(), b = fresh_.model->parameters();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i]->master(), b[i]->master())) << a[i]->name();
  for (size_t i = 0; i < optimizer_->slots().size(); ++i) {
    EXPECT_TRUE(at::equal(optimizer_->slots()[i].m, restored_->slots()[i].m));
    EXPECT_TRUE(at::equal(optimizer_->slots()[i].v, restored_->slots()[i].v));
  }
}

TEST_F(TrainStateTest, PruningKeepsTheNewestByNumberAndLeavesOtherNames) {
  fs::create_directories(dir + "/global_step_keep_me");
  for (int64_t step : {9, 10, 11}) save(step, 2);
  EXPECT_FALSE(fs::exists(dir + "/global_step_9"));
  EXPECT_TRUE(fs::exists(dir + "/global_step_10"));
  EXPECT_TRUE(fs::exists(dir + "/global_step_11"));
  EXPECT_TRUE(fs::exists(dir + "/global_step_keep_me"));
  save(12, 0);
  EXPECT_TRUE(fs::exists(dir + "/global_step_10")) << "0 keeps all";
}

TEST_F(TrainStateTest, LatestThatNamesNothingCompleteIsAnError) {
  EXPECT_EQ(latest_checkpoint(dir), std::nullopt);
  save(3);
  fs::remove(dir + "/global_step_3/manifest.json");
  EXPECT_NE(message_of<FileError>([&] { latest_checkpoint(dir); }).find("not complete"), std::string::npos);
  for (const char* name : {"../../etc", "global_step_", "global_step_-1", "global_step_99999999999999999999"}) {
    std::ofstream(dir + "/latest") << name << "\n";
    EXPECT_NE(message_of<FileError>([&] { latest_checkpoint(dir); }).find("expected global_step_N"), std::string::npos) << name;
  }
}

// A run that begins anew beside an old one's later steps: what was just saved stays, the abandoned ones go.
TEST_F(TrainStateTest, PruningKeepsWhatWasJustSaved) {
  for (const int64_t step : {3, 4, 5}) save(step, 3);
  for (const int64_t step : {1, 2}) {
    save(step, 3);
    EXPECT_EQ(latest_checkpoint(dir), fmt::format("{}/global_step_{}", dir, step));
    EXPECT_TRUE(fs::exists(dir + "/global_step_5"));
  }
  EXPECT_FALSE(fs::exists(dir + "/global_step_4"));
  save(3, 1);
  EXPECT_EQ(latest_checkpoint(dir), dir + "/global_step_3");
  EXPECT_FALSE(fs::exists(dir + "/global_step_5"));
}

// `latest` lost in a copy: the newest complete checkpoint, not the beginning, which would overwrite them.
TEST_F(TrainStateTest, WithoutLatestTheNewestCompleteOneIsTaken) {
  for (const int64_t step : {3, 9, 10}) save(step, 0);
  fs::remove(dir + "/latest");
  fs::remove(dir + "/global_step_10/manifest.json");
  EXPECT_EQ(latest_checkpoint(dir), dir + "/global_step_9");
}

// Where no manifest tells (format 1), numbers that cannot be are errors as well.
TEST_F(TrainStateTest, CountsThatCannotBeAreErrors) {
  save(3);
  const std::string progress = dir + "/global_step_3/state/progress.json";
  fs::remove(dir + "/global_step_3/manifest.json");
  for (const char* key : {"step", "updates", "weight_version"})
    for (const nlohmann::json& bad : {nlohmann::json(-5), nlohmann::json(1e30), nlohmann::json("3"), nlohmann::json()}) {
      nlohmann::json j = nlohmann::json::parse(read_bytes(progress));
      const nlohmann::json good = j;
      j["format"] = 1;
      j[key] = bad;
      std::ofstream(progress, std::ios::binary) << j;
      EXPECT_NE(message_of<FileError>([&] { load(dir + "/global_step_3"); }).find(key), std::string::npos) << key << " " << bad;
      std::ofstream(progress, std::ios::binary) << good;
    }
}

TEST_F(TrainStateTest, DamagedStateIsAnErrorThatNamesTheFile) {
  save(3);
  const std::string state = dir + "/global_step_3/state/", progress = state + "progress.json";
  const std::string good = read_bytes(progress);
  for (const std::string& bad :
       {good.substr(0, good.size() / 2), std::string("[]"), std::string("{\"format\": 1}"), std::string("{\"format\": 2}")}) {
    std::ofstream(progress, std::ios::binary) << bad;
    EXPECT_NE(message_of<FileError>([&] { load(dir + "/global_step_3"); }).find("progress.json"), std::string::npos) << bad;
  }
  std::ofstream(progress, std::ios::binary) << good;
  fs::resize_file(state + "optimizer.safetensors", fs::file_size(state + "optimizer.safetensors") - 4);
  EXPECT_NE(message_of<FileError>([&] { load(dir + "/global_step_3"); }).find("optimizer.safetensors"), std::string::npos);
  fs::remove(state + "master.safetensors");
  EXPECT_NE(message_of<Error>([&] { load(dir + "/global_step_3"); }).find("master.safetensors"), std::string::npos);
}

TEST_F(TrainStateTest, StateOfAnotherModelIsRefused) {
  save(3);
  write_tiny_model(dir_.file("wider"), [](auto& c) { c["moe_intermediate_size"] = 24; });
  LoadedModel other = load_model(dir_.file("wider"), DType::kF32);
  Optimizer optimizer(other.model->parameters(), OptimRecipe{}, 10);
  const std::string text = message_of<FileError>([&] { load_checkpoint(dir + "/global_step_3", "", other, optimizer); });
  EXPECT_NE(text.find("experts"), std::string::npos) << text;
  EXPECT_NE(text.find("does not fit the model"), std::string::npos) << text;
}

TEST_F(TrainStateTest, SftDoesNotGoOnFromATrainRun) {
  progress_.command = "train";
  save(3);
  const std::string text = message_of<UsageError>([&] { load_checkpoint(dir + "/global_step_3", "sft", model_, *optimizer_); });
  EXPECT_NE(text.find("is a checkpoint of weft train"), std::string::npos) << text;
  EXPECT_EQ(load_checkpoint(dir + "/global_step_3", "train", model_, *optimizer_).step, 3);
}

TEST_F(TrainStateTest, SavingTheSameStepAgainReplacesIt) {
  save(3);
  progress_.updates = 99;
  save(3);
  EXPECT_EQ(load(dir + "/global_step_3").updates, 99);
}

}  // namespace
}  // namespace weft
