// Jobs of several ranks as a user starts them: the same bits from threads and from processes, and every way to fail, each a program
// of its own with limits of 2 s, judged by its exit code and by whom it blames.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <future>

#include "weft/base/clock.h"
#include "weft/base/error.h"
#include "weft/base/subprocess.h"

namespace weft {
namespace {

struct Outcome {
  int exit_code = -1;
  std::string output;  // standard output, then standard error
  double seconds = 0;
};

Outcome run_program(std::vector<std::string> argv) {
  SubprocessOptions options;
  options.argv = std::move(argv);
  options.stderr_lines = 400;
  Outcome outcome;
  const double begin = real_clock().now();
  Subprocess program(options);
  std::string line;
  while (program.read_line(&line, 60) == PipeStatus::kDone) outcome.output += line + "\n";
  EXPECT_TRUE(program.finish(10)) << "still running";
  outcome.exit_code = program.exit_code();
  outcome.output += program.stderr_tail();
  outcome.seconds = real_clock().now() - begin;
  return outcome;
}

Outcome mpirun(int processes, const std::vector<std::string>& flags, const std::vector<std::string>& program) {
  std::vector<std::string> argv = {WEFT_MPIRUN, "--allow-run-as-root", "--oversubscribe", "--quiet", "-n", std::to_string(processes)};
  argv.insert(argv.end(), flags.begin(), flags.end());
  argv.insert(argv.end(), program.begin(), program.end());
  return run_program(std::move(argv));
}

// The helper with threads (0 processes) or under mpirun.
Outcome run(std::vector<std::string> arguments, int processes) {
  arguments.insert(arguments.begin(), WEFT_COMM_RANK);
  return processes == 0 ? run_program(std::move(arguments)) : mpirun(processes, {}, arguments);
}

bool with_mpi() { return std::string_view(WEFT_MPIRUN) != ""; }

// A case on three threads and, at the same time (most of it is waiting), on three processes.
std::vector<Outcome> run_worlds(const std::string& how, const std::string& progress = "background", const std::string& timeout = "2",
                                const std::string& heartbeat = "2") {
  const std::vector<std::string> arguments = {how, "3", progress, heartbeat, timeout};
  std::vector<std::future<Outcome>> running;
  for (const int processes : with_mpi() ? std::vector<int>{0, 3} : std::vector<int>{0})
    running.push_back(std::async(std::launch::async, [=] { return run(arguments, processes); }));
  std::vector<Outcome> outcomes;
  for (auto& outcome : running) outcomes.push_back(outcome.get());
  return outcomes;
}

void expect_blame(const Outcome& outcome, int exit_code, const std::string& blame, double seconds) {
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output;
  const size_t told = outcome.output.find(blame);
  EXPECT_NE(told, std::string::npos) << "wanted: " << blame << "\n" << outcome.output;
  EXPECT_EQ(outcome.output.find(blame, told + 1), std::string::npos) << "told twice:\n" << outcome.output;
  EXPECT_NE(outcome.output.find("all_gather of 'world', 12 bytes"), std::string::npos) << "no last operations:\n" << outcome.output;
  EXPECT_LT(outcome.seconds, seconds) << outcome.output;
}

TEST(CommProcesses, TheSameBitsFromThreadsAndProcessesInEitherProgress) {
  for (const int n : {1, 2, 3, 4}) {
    const Outcome threads = run({"hash", std::to_string(n), "inline"}, 0);
    ASSERT_EQ(threads.exit_code, 0) << threads.output;
    ASSERT_TRUE(threads.output.starts_with("hash ")) << threads.output;
    if (!with_mpi()) continue;
    for (const std::string progress : {"inline", "background"}) {
      const Outcome processes = run({"hash", std::to_string(n), progress}, n);
      EXPECT_EQ(processes.exit_code, 0) << processes.output;
      EXPECT_EQ(processes.output, threads.output) << n << " ranks, " << progress;
    }
  }
}

TEST(CommProcesses, OperationsMoveWhileRanksCompute) {
  for (const int processes : with_mpi() ? std::vector<int>{0, 2} : std::vector<int>{0}) {
    const Outcome outcome = run({"overlap", "2", "background"}, processes);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    for (const char* rank : {"rank 0: 4 8", "rank 1: 4 8"}) EXPECT_NE(outcome.output.find(rank), std::string::npos) << outcome.output;
  }
}

TEST(CommProcesses, AWorldOfAnotherSizeIsRefusedWithBothNumbers) {
  if (!with_mpi()) return;
  const Outcome outcome = run({"hash", "3"}, 2);
  EXPECT_EQ(outcome.exit_code, kExitUsage) << outcome.output;
  EXPECT_NE(outcome.output.find("the mesh has 3 ranks, and the launcher started 2"), std::string::npos) << outcome.output;
}

TEST(CommProcesses, ARankThatThrows) {
  for (const Outcome& outcome : run_worlds("throw")) expect_blame(outcome, kExitFailed, "rank 1 threw: weights.bin: byte 12: is torn", 4);
}

TEST(CommProcesses, ARankThatReturnsEarly) {
  for (const Outcome& outcome : run_worlds("return")) expect_blame(outcome, kExitPeerLost, "rank 1 has returned", 4);
}

TEST(CommProcesses, ARankThatLoopsForEver) {
  for (const Outcome& outcome : run_worlds("loop")) expect_blame(outcome, kExitPeerLost, "rank 1 did not come to all_gather #1 of 'world'", 8);
}

TEST(CommProcesses, ARankThatCallsAnotherOperation) {
  for (const std::string progress : {"inline", "background"})
    for (const Outcome& outcome : run_worlds("kind", progress, "60")) {
      expect_blame(outcome, kExitPeerLost, "ranks disagree at #1 of 'world'", 6);
      EXPECT_NE(outcome.output.find("rank 1 calls reduce_scatter"), std::string::npos) << outcome.output;
    }
}

TEST(CommProcesses, ARankThatPassesAnotherSize) {
  for (const Outcome& outcome : run_worlds("size", "background", "60")) {
    expect_blame(outcome, kExitPeerLost, "ranks disagree", 6);
    EXPECT_NE(outcome.output.find("rank 1"), std::string::npos) << outcome.output;
  }
}

TEST(CommProcesses, RanksThatWaitForEachOtherInDifferentGroups) {
  for (const Outcome& outcome : run_worlds("group", "background", "60")) {
    expect_blame(outcome, kExitPeerLost, "ranks wait for each other", 6);
    EXPECT_NE(outcome.output.find("rank 1 in barrier #0 of 'other'"), std::string::npos) << outcome.output;
  }
}

TEST(CommProcesses, ARankThatComputesForLongIsNoHang) {
  for (const Outcome& outcome : run_worlds("compute", "inline", "30", "1")) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_NE(outcome.output.find("rank 2 got through"), std::string::npos) << outcome.output;
  }
}

// Ranks of other hosts have no ring here; each rank says from whom nothing came.
TEST(CommProcesses, ARankOfAnotherHostThatDoesNotCome) {
  if (!with_mpi()) return;
  std::string dir = (std::filesystem::temp_directory_path() / "weft-rings-XXXXXX").string();
  ASSERT_NE(::mkdtemp(dir.data()), nullptr);
  const Outcome outcome = run({"loop", "3", "background", "2", "2", dir}, 3);
  std::filesystem::remove_all(dir);
  EXPECT_EQ(outcome.exit_code, kExitPeerLost) << outcome.output;  // and one process of each "host" says so
  EXPECT_NE(outcome.output.find("rank 1 on other hosts did not come to all_gather #1 of 'world'"), std::string::npos)
      << outcome.output;
  EXPECT_LT(outcome.seconds, 9) << outcome.output;
}

TEST(CommProcesses, AProcessThatIsStopped) {
  if (with_mpi()) expect_blame(run({"stop", "3", "background", "2", "60"}, 3), kExitPeerLost, "rank 1 hangs: no sign of life", 9);
}

// mpirun's own code is that of the process it saw end first, 128 + 9; a survivor's shell tells its code, where mpirun has not
// ended it, too.
TEST(CommProcesses, AProcessThatIsKilled) {
  if (!with_mpi()) return;
  expect_blame(run({"kill", "3", "inline", "2", "2"}, 3), 128 + 9, "rank 1 died", 6);
  const Outcome outcome = mpirun(3, {"--mca", "orte_abort_on_non_zero_status", "0"},
                                 {"/bin/sh", "-c", WEFT_COMM_RANK " kill 3 background 2 2; echo exit code $?"});
  EXPECT_NE(outcome.output.find("exit code 76"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace weft
