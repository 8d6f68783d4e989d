#include "weft/comm/launch_env.h"

#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft {
namespace {

std::string error_of(const Environment& env) {
  try {
    (void)read_launch(env);
    return "no error";
  } catch (const UsageError& e) {
    return e.what();
  }
}

TEST(LaunchEnv, NothingIsThreads) {
  const LaunchWorld w = read_launch({});
  EXPECT_FALSE(w.mpi);
  EXPECT_EQ(w.size, 1);
  EXPECT_EQ(w.rank, -1);
}

TEST(LaunchEnv, Mpirun) {
  const LaunchWorld w = read_launch({{"OMPI_COMM_WORLD_SIZE", "8"},
                                     {"OMPI_COMM_WORLD_RANK", "5"},
                                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                     {"SLURM_STEP_NUM_TASKS", "2"},  // of the step in which mpirun started its daemons
                                     {"SLURM_NTASKS", "8"},
                                     {"PMIX_RANK", "5"}});
  EXPECT_TRUE(w.mpi);
  EXPECT_EQ(w.launcher, "mpirun");
  EXPECT_EQ(w.size, 8);
  EXPECT_EQ(w.rank, 5);
  EXPECT_EQ(w.local_rank, 1);
  EXPECT_EQ(w.local_size, 4);
}

TEST(LaunchEnv, SrunOnSeveralNodes) {
  const auto on = [](const char* node, const char* rank) {
    return read_launch({{"SLURM_STEP_NUM_TASKS", "7"},
                        {"SLURM_PROCID", rank},
                        {"SLURM_LOCALID", "0"},
                        {"SLURM_NODEID", node},
                        {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                        {"PMIX_RANK", rank}});
  };
  const LaunchWorld w = on("2", "4");
  EXPECT_EQ(w.launcher, "srun");
  EXPECT_EQ(w.size, 7);
  EXPECT_EQ(w.rank, 4);
  EXPECT_EQ(w.local_size, 2);
  EXPECT_EQ(on("3", "6").local_size, 1);
  EXPECT_EQ(on("4", "6").local_size, 0);  // does not say
}

TEST(LaunchEnv, ABatchScriptIsNoLauncher) {
  EXPECT_FALSE(read_launch({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}}).mpi);
}

TEST(LaunchEnv, PmiAndPmix) {
  const LaunchWorld pmi = read_launch({{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_EQ(pmi.launcher, "PMI");
  EXPECT_EQ(pmi.size, 4);
  EXPECT_EQ(read_launch({{"PMI_SIZE", "2"}, {"SLURM_STEP_NUM_TASKS", "2"}}).launcher, "srun");
  const LaunchWorld pmix = read_launch({{"PMIX_RANK", "1"}});
  EXPECT_TRUE(pmix.mpi);
  EXPECT_EQ(pmix.size, 0);
  EXPECT_EQ(pmix.rank, 1);
}

TEST(LaunchEnv, VariablesThatCannotBe) {
  EXPECT_EQ(error_of({{"OMPI_COMM_WORLD_SIZE", "many"}}),
            "the environment variable OMPI_COMM_WORLD_SIZE = \"many\" should hold a number: it is the launcher's to set");
  EXPECT_NE(error_of({{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "2"}}).find("SLURM_PROCID = 2 contradict"),
            std::string::npos);
}

TEST(LaunchEnv, AMismatchSaysEverything) {
  const Environment env = {
      {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_TASKS_PER_NODE", "4"}};
  EXPECT_EQ(world_mismatch(2, read_launch(env), env),
            "the mesh has 2 ranks, and the launcher started 4: srun started 4 (SLURM_STEP_NUM_TASKS = 4), this is rank 1, one of "
            "4 on this "
            "host; SLURM_NTASKS = 8. Start as many as the mesh has (srun --ntasks=2), or let an axis fill what was started: "
            "actor.mesh=fsdp=-1");
}

TEST(LaunchEnv, OneCoreOfManyIsNoticed) {
  LaunchWorld w{true, "mpirun", "OMPI_COMM_WORLD_SIZE", 2, 0, 0, 2};
  EXPECT_TRUE(bound_to_one_core(w, 1, 64));
  EXPECT_TRUE(bound_to_one_core(w, 2, 64));  // two hardware threads
  EXPECT_FALSE(bound_to_one_core(w, 1, 2));
  EXPECT_FALSE(bound_to_one_core(w, 32, 64));
  w.local_size = 4;  // bound to a socket
  EXPECT_FALSE(bound_to_one_core(w, 2, 8));
  w.launcher = "srun";  // as asked for
  EXPECT_FALSE(bound_to_one_core(w, 1, 64));
}

}  // namespace
}  // namespace weft
