// What is removed of checkpoints/, and what never is. Checkpoints are directories with a manifest here.
#include "weft/train/checkpoint_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <set>

#include "weft/train/sft.h"
#include "weft/train/test_runs.h"
#include "weft/train/train_state.h"
#include "weft/train/trainer.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Permissions bind everybody but root.
class AsNobody {
 public:
  AsNobody() {
    if (was_root_ && ::seteuid(kNobody) != 0) ADD_FAILURE() << "seteuid";
  }
  ~AsNobody() {
    if (was_root_ && ::seteuid(0) != 0) std::abort();
  }
  static constexpr uid_t kNobody = 65534;

 private:
  bool was_root_ = ::geteuid() == 0;
};

class CheckpointDir : public RunTest {
 protected:
  CheckpointDir() {
    fs::create_directories(dir_.file("c"));
    set_log_level(LogLevel::kWarn);
  }
  std::string path(const std::string& name) const { return dir_.file("c/" + name); }
  void make(const std::string& name, bool complete = true) const {
    fs::create_directories(path(name + "/state"));
    std::ofstream(path(name + "/state/master.safetensors")) << "weights";
    if (complete) std::ofstream(path(name + "/manifest.json")) << "{}";
  }
  void make_steps(std::initializer_list<int> steps) const {
    for (int step : steps) make(fmt::format("global_step_{}", step));
  }
  std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& e : fs::directory_iterator(dir_.file("c"))) out.insert(e.path().filename().string());
    return out;
  }
  // What fn logs.
  static std::string logged(const std::function<void()>& fn) {
    ::testing::internal::CaptureStderr();
    EXPECT_NO_THROW(fn());
    return ::testing::internal::GetCapturedStderr();
  }
  std::string prune(int64_t keep, int64_t saved) const {
    return logged([&] { prune_checkpoints(dir_.file("c"), keep, saved); });
  }
  // Nobody's, and `name` of it cannot be written.
  void protect(const std::string& name) const {
    if (::geteuid() == 0) {
      std::vector<fs::path> all = {dir_.path()};
      for (const auto& e : fs::recursive_directory_iterator(dir_.path())) all.push_back(e.path());
      for (const fs::path& p : all) ASSERT_EQ(::lchown(p.c_str(), AsNobody::kNobody, static_cast<gid_t>(-1)), 0);
    }
    ASSERT_EQ(::chmod(path(name).c_str(), 0555), 0);
  }
};

TEST_F(CheckpointDir, NamesThatAreNotWeftsAreLeftAlone) {
  // As many as it takes for the order of the directory to have them on both sides.
  for (const char* other : {"global_step_03", "global_step_003", "global_step_0003", "global_step_00003", "global_step_000003",
                            "global_step_+3", "global_step_3x", "global_step_"})
    make(other);
  make_steps({1, 2, 3});
  std::ofstream(path("latest")) << "global_step_3\n";
  std::set<std::string> expected = names();
  prune(1, 3);
  for (const char* gone : {"global_step_1", "global_step_2"}) expected.erase(gone);
  EXPECT_EQ(names(), expected);
  EXPECT_EQ(newest_checkpoint(dir_.file("c")), "global_step_3");
  fs::remove(path("latest"));
  make("global_step_0009");
  EXPECT_EQ(newest_checkpoint(dir_.file("c")), "global_step_3");
}

TEST_F(CheckpointDir, CleaningLeavesOtherNamesAlone) {
  for (const char* other : {"notes.tmp-1", "global_step_03.tmp-1", "global_step_007.old"}) make(other);
  const std::set<std::string> expected = names();
  for (const char* ours : {"global_step_3.tmp-12ab", "global_step_4.tmp-removed"}) make(ours);
  std::ofstream(path("latest.tmp-77-0")) << "global_step_3\n";
  std::ofstream(path("latest.next.tmp-77-1")) << "global_step_3\n";
  EXPECT_EQ(logged([&] { clean_checkpoints(dir_.file("c")); }), "");
  EXPECT_EQ(names(), expected);
}

TEST_F(CheckpointDir, OnlyCompleteOnesCount) {
  make_steps({3, 4, 5});
  for (const char* cut_off : {"global_step_6", "global_step_7", "global_step_1"}) make(cut_off, false);
  EXPECT_EQ(prune(2, 5), "");
  EXPECT_EQ(names(),
            (std::set<std::string>{"global_step_1", "global_step_4", "global_step_5", "global_step_6", "global_step_7"}));
}

TEST_F(CheckpointDir, LaterStepsGoFirstAndAreTold) {
  make_steps({1, 2, 8, 9});
  const std::string text = prune(2, 2);
  EXPECT_EQ(names(), (std::set<std::string>{"global_step_1", "global_step_2"}));
  for (const char* gone : {"global_step_8 was pruned", "global_step_9 was pruned"})
    EXPECT_NE(text.find(gone), std::string::npos) << text;
  make_steps({3});
  EXPECT_EQ(prune(2, 3), "") << "what is older goes without a word";
}

TEST_F(CheckpointDir, WhatCannotBeRemovedStaysAsItIs) {
  for (const char* protected_part : {"global_step_1", "global_step_2/state"}) {
    make_steps({1, 2, 3, 4});
    protect(protected_part);
    {
      const AsNobody nobody;
      const std::string text = prune(1, 4), name = std::string(protected_part).substr(0, 13);
      EXPECT_NE(text.find(path(name)), std::string::npos) << text;
      EXPECT_NE(text.find("Permission denied"), std::string::npos) << text;
      EXPECT_EQ(names(), (std::set<std::string>{name, "global_step_4"}));
      EXPECT_TRUE(fs::exists(path(name + "/state/master.safetensors")));
      ::chmod(path(protected_part).c_str(), 0755);
      EXPECT_EQ(prune(1, 4), "");
      EXPECT_EQ(names(), std::set<std::string>{"global_step_4"});
    }
  }
}

TEST_F(CheckpointDir, ACleaningThatIsRefusedIsAWarning) {
  make_steps({1});
  for (const char* left : {"global_step_2.tmp-1", "global_step_3.tmp-removed", "global_step_4.tmp-9"}) make(left);
  protect("global_step_3.tmp-removed/state");
  {
    const AsNobody nobody;
    const std::string text = logged([&] { clean_checkpoints(dir_.file("c")); });
    EXPECT_NE(text.find(path("global_step_3.tmp-removed")), std::string::npos) << text;
    EXPECT_EQ(names(), (std::set<std::string>{"global_step_1", "global_step_3.tmp-removed"}));
    ::chmod(path("global_step_3.tmp-removed/state").c_str(), 0755);
    EXPECT_EQ(logged([&] { clean_checkpoints(dir_.file("c")); }), "");
  }
  // Nor is an unreadable directory the end of looking for the newest.
  make_steps({5});
  protect("global_step_5");
  ::chmod(path("global_step_5").c_str(), 0);
  const AsNobody nobody;
  logged([&] { EXPECT_EQ(newest_checkpoint(dir_.file("c")), "global_step_1"); });
  ::chmod(path("global_step_5").c_str(), 0755);
}

// The checkpoint that a recipe goes on from is needed again when the run is started again.
TEST_F(CheckpointDir, WhatTheRecipeGoesOnFromIsSpared) {
  const auto sft = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"trainer.save_freq=1", "trainer.max_ckpt_to_keep=1", "data.train_batch_size=8"});
    SftTrainer(recipe("r", more, RecipeUse::kSft), registry_).run();
  };
  sft({"trainer.total_training_steps=1"});
  const std::string first = run_file("r", "checkpoints/global_step_1");
  for (const std::string& written : {first, first + "/", fs::relative(first).string()}) {
    sft({"trainer.total_training_steps=3", "trainer.resume_mode=resume_path", "trainer.resume_from_path=" + written});
    EXPECT_TRUE(fs::exists(first)) << written;
    EXPECT_FALSE(fs::exists(run_file("r", "checkpoints/global_step_2")));
    EXPECT_TRUE(fs::exists(run_file("r", "checkpoints/global_step_3")));
  }
  sft({"trainer.total_training_steps=4"});
  EXPECT_FALSE(fs::exists(first));
  const std::string text = message_of<FileError>([&] {
    sft({"trainer.total_training_steps=4", "trainer.resume_mode=resume_path", "trainer.resume_from_path=" + first});
  });
  EXPECT_EQ(text, first + ": there is no such checkpoint");
}

// And the critic's beside it.
TEST_F(CheckpointDir, TheCriticsOfItIsSparedToo) {
  const auto ppo = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"algorithm.adv_estimator=gae", "trainer.save_freq=1", "trainer.max_ckpt_to_keep=1"});
    Trainer(recipe("p", more), registry_).run();
  };
  ppo({"trainer.total_training_steps=1"});
  const std::string first = run_file("p", "checkpoints/global_step_1/"),
                    critic = run_file("p", "checkpoints/critic/global_step_1");
  ppo({"trainer.total_training_steps=4", "trainer.resume_mode=resume_path", "trainer.resume_from_path=" + first});
  EXPECT_TRUE(fs::exists(first));
  EXPECT_TRUE(fs::exists(critic));
  EXPECT_FALSE(fs::exists(run_file("p", "checkpoints/critic/global_step_2")));
  fs::create_directories(run_file("p", "checkpoints/critic/global_step_9.tmp-1"));
  ppo({"trainer.total_training_steps=5"});
  EXPECT_FALSE(fs::exists(critic));
  EXPECT_FALSE(fs::exists(run_file("p", "checkpoints/critic/global_step_9.tmp-1")));
}

}  // namespace
}  // namespace weft
