// Checkpoints of ranks that are processes: killed at 20 moments of a save, a disk that is full for one of them, a directory that
// one of them does not see.
#include <set>

#include "tests/jobs.h"
#include "weft/base/error.h"
#include "weft/checkpoint/manifest.h"
#include "weft/io/atomic_file.h"
#include "weft/train/checkpoint_dir.h"
#include "weft/train/train_state.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kEachStep = {"trainer.save_freq=1", "trainer.max_ckpt_to_keep=2", "comm.timeout=5",
                                            "comm.heartbeat=1"};

class CheckpointProcesses : public JobTest {
 protected:
  // Every directory with its final name is whole; the newest is what a run would go on from. Returns its step.
  int64_t newest_complete(const std::string& run) const {
    const std::string dir = run_file(run, "checkpoints");
    int64_t newest = 0;
    for (const auto& entry : fs::directory_iterator(dir)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("global_step_") || name.find('.') != std::string::npos) continue;
      const std::string path = entry.path().string() + "/" + kManifestName;
      EXPECT_GT(check_everything(parse_manifest(read_text_file(path), path), entry.path().string()), 0);
      newest = std::max<int64_t>(newest, std::stoll(name.substr(name.rfind('_') + 1)));
    }
    EXPECT_EQ(newest_checkpoint(dir), fmt::format("global_step_{}", newest));
    return newest;
  }
  // Two ranks that are not alike: rank 1 as `one` says it.
  Job start_unlike(const std::vector<std::string>& zero, const std::vector<std::string>& one) const {
    std::vector<std::string> argv = Job::mpirun();
    argv.insert(argv.end(), {"-n", "1"});
    argv.insert(argv.end(), zero.begin(), zero.end());
    argv.insert(argv.end(), {":", "-n", "1"});
    argv.insert(argv.end(), one.begin(), one.end());
    return Job(argv);
  }
  static std::vector<std::string> program(const std::vector<std::string>& words, std::vector<std::string> before = {}) {
    before.push_back(WEFT_PROGRAM);
    before.insert(before.end(), words.begin(), words.end());
    return before;
  }
};

class CheckpointKilled : public CheckpointProcesses {
 protected:
  ~CheckpointKilled() override {
    for (const char* name : {"WEFT_KILL_RANK", "WEFT_KILL_AT", "WEFT_KILL_LOG"}) ::unsetenv(name);
  }
  // Goes on to `steps` and kills the rank at its n-th write (0: not). Returns the calls it counted.
  std::vector<std::string> run_killed(int rank, int64_t n, int64_t steps) {
    const std::string log = dir_.file("calls");
    fs::remove(log);
    ::setenv("WEFT_KILL_RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WEFT_KILL_AT", std::to_string(n).c_str(), 1);
    ::setenv("WEFT_KILL_LOG", log.c_str(), 1);
    std::vector<std::string> argv = Job::mpirun();
    // A sanitizer's runtime minds what is loaded before it.
    argv.insert(argv.end(),
                {"-x", "LD_PRELOAD=" WEFT_KILLER, "-x", "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0", "-n", "2"});
    for (const std::string& word : program(words("parts", steps, kEachStep))) argv.push_back(word);
    Job job(argv);
    const int code = job.finish();
    if (n == 0)
      EXPECT_EQ(code, kExitDone) << job.output();
    else
      EXPECT_NE(code, kExitDone) << "was not killed:\n" << job.output();
    EXPECT_NE(job.output().find(fmt::format("(step {})", steps - 1)), std::string::npos) << job.output();
    std::vector<std::string> calls;
    std::ifstream in(log);
    for (std::string line; std::getline(in, line);) calls.push_back(line);
    return calls;
  }
};

TEST_F(CheckpointKilled, AtTwentyMomentsTheNewestCompleteCheckpointLoads) {
  if (!with_mpi()) return;
  // The moments of a save in which an older checkpoint goes: of rank 0 each of the commit and some before, of rank 1 some.
  train(Ranks::kProcesses, "parts", 2, kEachStep);
  const std::vector<std::string> of_zero = run_killed(0, 0, 3), of_one = run_killed(1, 0, 4);
  ASSERT_GT(of_zero.size(), 40u);
  ASSERT_GT(of_one.size(), 20u);
  std::vector<std::pair<int, int64_t>> moments;
  std::set<std::string> kinds;
  const auto spread = [&](int rank, int64_t from, int64_t to, int64_t n) {
    for (int64_t i = 0; i < n; ++i) moments.emplace_back(rank, 1 + from + i * (to - from - 1) / (n - 1));
  };
  const int64_t zero = static_cast<int64_t>(of_zero.size()), one = static_cast<int64_t>(of_one.size());
  int64_t manifest = 0, renamed = 0, pruned = 0;
  while (of_zero[static_cast<size_t>(manifest)].find("/manifest.json") == std::string::npos) ++manifest;
  while (!of_zero[static_cast<size_t>(renamed)].ends_with("/global_step_3")) ++renamed;  // the directory gets its name
  while (!of_zero[static_cast<size_t>(pruned)].ends_with(".tmp-removed")) ++pruned;
  ASSERT_TRUE(manifest < renamed && renamed + 5 < pruned) << manifest << " " << renamed << " " << pruned;
  spread(0, 0, manifest, 4);
  spread(0, manifest, renamed + 1, 3);
  spread(0, renamed + 1, pruned, 6);
  spread(0, pruned, zero, 2);
  spread(1, 0, one, 5);
  ASSERT_EQ(moments.size(), 20u);

  int64_t step = newest_complete("parts");
  ASSERT_EQ(step, 4);
  int committed = 0;
  for (const auto& [rank, n] : moments) {
    const std::vector<std::string> calls = run_killed(rank, n, step + 1);
    ASSERT_EQ(static_cast<int64_t>(calls.size()), n) << "rank " << rank;
    SCOPED_TRACE(fmt::format("rank {} killed at call {}: {}", rank, n, calls.back()));
    const int64_t now = newest_complete("parts");
    EXPECT_EQ(now, rank == 1 || n <= renamed + 1 ? step : step + 1);
    committed += now == step + 1;
    step = now;
    LoadedModel model = load_model(tiny_model(), DType::kF32);
    Optimizer optimizer(model.model->parameters(), OptimRecipe{}, 10);
    EXPECT_EQ(load_checkpoint(run_file("parts", fmt::format("checkpoints/global_step_{}", now)), "train", model, optimizer).step,
              now);
    kinds.insert(calls.back().substr(0, calls.back().find(' ')));
  }
  EXPECT_EQ(committed, 8);
  EXPECT_GE(kinds.size(), 4u) << "moments of several kinds";
  // What all of this led to is what a run that was left alone has; nothing is left behind.
  train(Ranks::kProcesses, "parts", step + 1, kEachStep);
  train(Ranks::kProcesses, "whole", step + 1, kEachStep);
  expect_same_run("parts", "whole", step + 1);
  EXPECT_EQ(read_bytes(run_file("parts", "checkpoints/latest")), fmt::format("global_step_{}\n", step + 1));
  for (const auto& entry : fs::directory_iterator(run_file("parts", "checkpoints")))
    EXPECT_EQ(entry.path().filename().string().find_first_of(".~"), std::string::npos) << entry.path();
}

// A limit on the size of files for rank 1 alone is a full disk for what it writes.
TEST_F(CheckpointProcesses, AFullDiskOnOneRankEndsTheRunAndLeavesTheFormerCheckpoint) {
  if (!with_mpi()) return;
  train(Ranks::kProcesses, "run", 1, kEachStep);
  const std::vector<std::string> more = words("run", 3, kEachStep);
  Job job = start_unlike(program(more), program(more, {"sh", "-c", "ulimit -f 64; exec \"$0\" \"$@\""}));
  EXPECT_EQ(job.finish(), kExitFailed) << job.output();
  EXPECT_NE(job.output().find("cannot write: File too large"), std::string::npos) << job.output();
  EXPECT_NE(job.output().find("rank 1"), std::string::npos) << job.output();
  EXPECT_LT(job.seconds(), 30);
  EXPECT_EQ(newest_complete("run"), 1);
  EXPECT_EQ(read_bytes(run_file("run", "checkpoints/latest")), "global_step_1\n");
  for (const auto& entry : fs::directory_iterator(run_file("run", "checkpoints")))
    EXPECT_EQ(entry.path().filename().string().find(".tmp-"), std::string::npos) << entry.path();
  train(Ranks::kProcesses, "run", 3, kEachStep);
  train(Ranks::kProcesses, "whole", 3, kEachStep);
  expect_same_run("run", "whole", 3);
}

// Rank 1 has another runs directory, as on a host without the shared file system.
TEST_F(CheckpointProcesses, ADirectoryThatOneRankDoesNotSee) {
  if (!with_mpi()) return;
  const auto run = [&](int64_t steps) {
    const std::vector<std::string> zero = words("run", steps, kEachStep);
    std::vector<std::string> one = zero;
    one.push_back("trainer.runs_dir=" + dir_.file("other_host"));
    Job job = start_unlike(program(zero), program(one));
    EXPECT_EQ(job.finish(), kExitDone) << job.output();
    return job.output();
  };
  EXPECT_NE(run(1).find("is not seen by all ranks: rank 0 writes for them"), std::string::npos);
  const std::string resumed = run(3);
  EXPECT_NE(resumed.find("is not seen by all ranks: rank 0 reads for them"), std::string::npos) << resumed;
  EXPECT_NE(resumed.find("(step 1)"), std::string::npos) << resumed;
  EXPECT_FALSE(fs::exists(dir_.file("other_host") + "/run/checkpoints"));
  train(Ranks::kProcesses, "whole", 3, kEachStep);
  expect_same_run("run", "whole", 3);
}

}  // namespace
}  // namespace weft
