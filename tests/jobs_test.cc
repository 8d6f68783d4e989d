// Jobs of two ranks as a user starts, stops and loses them: logs, signals, ranks that fail. Each on threads and on processes of
// mpirun.
#include "tests/jobs.h"

#include <random>

namespace weft {
namespace {

// ---- Logs

TEST_F(JobTest, EachRankHasALogAndAResumeAppends) {
  for (const Ranks ranks : all_kinds()) {
    const std::string run = ranks == Ranks::kThreads ? "threads" : "processes";
    Job job = start(ranks, run, 1);
    ASSERT_EQ(job.finish(), kExitDone) << job.output();
    EXPECT_NE(job.output().find("step 1: reward"), std::string::npos) << job.output();
    EXPECT_EQ(job.output().find("started on"), std::string::npos) << "only in the logs:\n" << job.output();
    EXPECT_NE(log(run, 0).find("Z rank 0: step 1: reward"), std::string::npos) << log(run, 0);
    EXPECT_NE(log(run, 1).find("Z rank 1: started on"), std::string::npos) << log(run, 1);
    const std::string zero = log(run, 0), one = log(run, 1);
    train(ranks, run, 2);
    for (const int rank : {0, 1}) {
      EXPECT_TRUE(log(run, rank).starts_with(rank == 0 ? zero : one)) << log(run, rank);
      EXPECT_EQ(count_of(log(run, rank), "started on"), 2) << log(run, rank);
    }
    EXPECT_NE(log(run, 0).find("going on from"), std::string::npos);
  }
}

// ---- Roles

// What processes compute is what threads do, digit for digit: roles on a mesh each, samples that travel, memory that sleeps.
TEST_F(JobTest, RolesThatAreProcesses) {
  if (!with_mpi()) return;
  const std::string limit = "memory.limit=230kB";
  std::vector<std::string> recipe = {limit, "rollout.mesh=tp=2", "router_replay.mode=R3", "rollout.top_p=0.9", "rollout.kv_cache_tokens=512"};
  train(Ranks::kProcesses, "processes", 2, recipe);
  std::erase(recipe, limit);
  train(Ranks::kThreads, "threads", 2, recipe);
  expect_same_run("threads", "processes", 2);
  const nlohmann::json row = metrics("processes", true).at(1);
  EXPECT_EQ(row.at("refit/byte_ratio").get<double>(), 1);
  EXPECT_GT(row.at("memory/stored_mb").get<double>(), 0);
}

// ---- Signals

struct SignalCase {
  Ranks ranks;
  int signal;
  int to;  // rank; -1: the program or mpirun
};

class Signalled : public JobTest, public testing::WithParamInterface<SignalCase> {};

TEST_P(Signalled, AtAnyTimeTheRunStopsAndGoesOnBitEqual) {
  const SignalCase c = GetParam();
  if (c.ranks == Ranks::kProcesses && !with_mpi()) return;
  std::random_device entropy;
  const double delay = 0.4 * std::uniform_real_distribution<>()(entropy);
  SCOPED_TRACE(fmt::format("signal {} after {:.4f} s", c.signal, delay));
  const std::string parts = "parts", whole = "whole";
  Job job = start(c.ranks, parts, 1000000);
  job.run_until([&] { return has_metrics(parts); });
  job.run_for(delay);
  ASSERT_EQ(::kill(c.to < 0 ? job.pid() : process_of(parts, c.to), c.signal), 0);
  EXPECT_EQ(job.finish(), kExitStopped) << job.output();
  EXPECT_EQ(count_of(job.output(), "run the same command to go on"), 1) << job.output();
  EXPECT_EQ(job.output().find("threw"), std::string::npos) << "a stop is no failure:\n" << job.output();
  if (c.to < 0 || c.ranks == Ranks::kThreads)
    EXPECT_NE(job.output().find(std::string("SIG") + ::sigabbrev_np(c.signal)), std::string::npos) << job.output();
  else
    EXPECT_NE(log(parts, 1 - c.to).find("a signal of another rank"), std::string::npos) << log(parts, 1 - c.to);
  const int64_t last = latest_step(parts) + 2;
  train(c.ranks, parts, last);
  train(c.ranks, whole, last);
  expect_same_run(parts, whole, last);
}

INSTANTIATE_TEST_SUITE_P(Ways, Signalled,
                         testing::Values(SignalCase{Ranks::kThreads, SIGTERM, -1}, SignalCase{Ranks::kProcesses, SIGUSR1, -1},
                                         SignalCase{Ranks::kProcesses, SIGTERM, 1}, SignalCase{Ranks::kProcesses, SIGINT, 0}));

TEST_F(JobTest, ASecondSignalEndsItAtOnce) {
  Job job = start(Ranks::kThreads, "run", 1000000, {"trainer.save_freq=1"});
  job.run_until([&] { return has_metrics("run"); });
  ::kill(job.pid(), SIGTERM);
  ::kill(job.pid(), SIGUSR1);
  const int code = job.finish();
  EXPECT_TRUE(code == 128 + SIGTERM || code == 128 + SIGUSR1) << code << "\n" << job.output();
  train(Ranks::kThreads, "run", has_checkpoint("run") ? latest_step("run") + 1 : 1);
}

// ---- Failures

const std::vector<std::string> kShort = {"comm.timeout=2", "comm.heartbeat=1", "trainer.save_freq=1", "reward.timeout=60"};

class Failing : public JobTest {
 protected:
  void expect_blame(const Job& job, int code, int expected, const std::string& blame, double seconds) const {
    EXPECT_EQ(code, expected) << job.output();
    EXPECT_EQ(count_of(job.output(), blame), 1) << "wanted once: " << blame << "\n" << job.output();
    EXPECT_EQ(count_of(job.output(), "last operations of rank 0"), 1) << job.output();
    EXPECT_NE(job.output().find(" of 'world'"), std::string::npos) << "no operation:\n" << job.output();
    EXPECT_LT(job.seconds(), seconds) << job.output();
  }
  // What is there is whole: the same command goes on from it.
  void expect_goes_on(Ranks ranks, const std::string& run) {
    ::unsetenv("WEFT_TEST_BAD");
    const int64_t step = latest_step(run);
    EXPECT_GE(step, 1);
    Job job = start(ranks, run, step + 1);
    EXPECT_EQ(job.finish(), kExitDone) << job.output();
    EXPECT_NE(job.output().find(fmt::format("(step {})", step)), std::string::npos) << job.output();
  }
};

TEST_F(Failing, ARewardThatThrowsOnOneRank) {
  for (const Ranks ranks : all_kinds()) {
    const std::string run = ranks == Ranks::kThreads ? "threads" : "processes";
    spoil("throw", 6);
    Job job = start(ranks, run, 100, kShort);
    expect_blame(job, job.finish(), kExitFailed, "rank 1 threw: ", 30);
    EXPECT_EQ(count_of(job.output(), "ValueError: no reward for"), 1) << job.output();
    for (const int rank : {0, 1}) EXPECT_EQ(count_of(log(run, rank), "error: rank 1 threw: "), 1) << log(run, rank);
    expect_goes_on(ranks, run);
  }
}

TEST_F(Failing, ARewardThatDoesNotReturnOnOneRank) {
  for (const Ranks ranks : all_kinds()) {
    const std::string run = ranks == Ranks::kThreads ? "threads" : "processes";
    spoil("sleep", 6);
    Job job = start(ranks, run, 100, kShort);
    expect_blame(job, job.finish(), kExitPeerLost, "rank 1 did not come to all_reduce", 30);
    expect_goes_on(ranks, run);
  }
}

TEST_F(Failing, AProcessThatIsKilled) {
  if (!with_mpi()) return;
  Job job = start(Ranks::kProcesses, "run", 1000000, kShort);
  job.run_until([&] { return has_checkpoint("run"); });
  ::kill(process_of("run", 1), SIGKILL);
  const int code = job.finish();  // mpirun's own: 128 and the signal of the process that it saw end first
  EXPECT_TRUE(code == 128 + SIGKILL || code == kExitPeerLost) << code;
  expect_blame(job, code, code, "rank 1 died", 30);
  EXPECT_EQ(count_of(log("run", 0), "error: rank 1 died"), 1) << log("run", 0);
  expect_goes_on(Ranks::kProcesses, "run");
}

TEST_F(Failing, AProcessThatIsStopped) {
  if (!with_mpi()) return;
  Job job = start(Ranks::kProcesses, "run", 1000000, kShort);
  job.run_until([&] { return has_checkpoint("run"); });
  ::kill(process_of("run", 1), SIGSTOP);
  expect_blame(job, job.finish(), kExitPeerLost, "rank 1 hangs: no sign of life", 30);
  expect_goes_on(Ranks::kProcesses, "run");
}

// ---- Worlds

TEST_F(JobTest, AMeshThatIsNotWhatWasStarted) {
  if (with_mpi()) {
    Job job = start(Ranks::kProcesses, "run", 1, {"actor.mesh=fsdp=3"});
    EXPECT_EQ(job.finish(), kExitUsage);
    for (const char* part :
         {"actor.mesh = \"fsdp=3\"", "the mesh has 3 ranks", "mpirun started 2", "OMPI_COMM_WORLD_SIZE", "mpirun -n 3"})
      EXPECT_NE(job.output().find(part), std::string::npos) << part << "\n" << job.output();
    train(Ranks::kProcesses, "run", 1, {"actor.mesh=fsdp=-1"});
  }
  Job alone = start(Ranks::kThreads, "threads", 1, {"actor.mesh=fsdp=-1"});
  EXPECT_EQ(alone.finish(), kExitUsage);
  EXPECT_NE(alone.output().find("there is none (no launcher)"), std::string::npos) << alone.output();
}

TEST_F(JobTest, DoctorShowsTheLauncherAndTheThreadsOfARank) {
  for (const Ranks ranks : all_kinds()) {
    Job job(ranks, {"doctor"});
    EXPECT_EQ(job.finish(), kExitDone) << job.output();
    EXPECT_NE(job.output().find(ranks == Ranks::kThreads ? "launcher       no launcher" : "launcher       mpirun started 2"),
              std::string::npos)
        << job.output();
    EXPECT_NE(job.output().find("CPU mask"), std::string::npos) << job.output();
  }
}

}  // namespace
}  // namespace weft
