#pragma once
// How the program was started, from the variables that launchers set: Open MPI's mpirun, Slurm's srun, anything that speaks PMIx
// or PMI.

#include <cstdint>
#include <map>
#include <string>

namespace weft {

using Environment = std::map<std::string, std::string>;

struct LaunchWorld {
  bool mpi = false;                     // by a launcher: ranks are processes; else threads of this one
  std::string launcher;                 // "mpirun", "srun", "PMIx", "PMI"; empty: none
  std::string from;                     // the variable that gives the size; for PMIx, that shows the launcher
  int size = 1;                         // ranks started; 0: known after the start of MPI only
  int rank = -1;                        // -1: likewise
  int local_rank = -1, local_size = 0;  // among the ranks of this host, where the launcher says so
};

// The first of mpirun, PMI, srun, PMIx that `env` shows; srun counts where it started this process (SLURM_STEP_NUM_TASKS), not in
// the batch script of its job. UsageError for a variable that holds no number, and where rank and size contradict each other.
LaunchWorld read_launch(const Environment& env);

// Everything that bears on the number of ranks, for messages: "mpirun started 2 (OMPI_COMM_WORLD_SIZE = 2); SLURM_NTASKS = 4".
std::string describe_launch(const LaunchWorld& world, const Environment& env);

// The message for a mesh that has another number of ranks than were started.
std::string world_mismatch(int mesh, const LaunchWorld& world, const Environment& env);

// mpirun gives each of at most two ranks of a host a single core unless it is told otherwise. True where that looks to be so:
// `mask` cores in the rank's CPU mask, `online` processors.
bool bound_to_one_core(const LaunchWorld& world, int mask, int64_t online);

// Those variables of this process.
Environment launch_environment();

}  // namespace weft
