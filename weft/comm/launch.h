#pragma once
// Starts the ranks of a job: threads of this process or, when mpirun or srun started the program, this process as one of theirs.

#include <functional>
#include <string>

#include "weft/comm/communicator.h"
#include "weft/comm/launch_env.h"

namespace weft {

// Who moves open operations: a communication thread of the rank, or the rank itself inside calls and waits. kAuto: a thread where
// there are two cores a rank. No bit depends on it.
enum class CommProgress { kAuto, kBackground, kInline };

struct CommOptions {
  CommProgress progress = CommProgress::kAuto;
  double heartbeat_s = 10;   // a process that shows no sign of life for so long is lost; also how long the others get to leave
  double timeout_s = 600;    // how long peers wait in an operation for a rank that computes
  double stall_s = 1;        // after so long in a wait, peers' operations are compared
  int threads_per_rank = 0;  // of parallel_for; 0: the rank's share of the host's cores (base/cores.h), at least 1
  std::string ring_dir;      // where the ranks' operation rings are kept (docs/communicator.md); empty: nowhere after the start
};

// How this process was started.
LaunchWorld launch_world();

// Runs fn on `n` ranks, each with its world communicator, its number of threads and denormals flushed, and returns when all have
// returned. Under mpirun or srun, this process's rank only; an n that differs from the ranks started is a UsageError.
// A rank that throws ends the job: its error is thrown here; the peers' waits throw PeerLostError. A rank that hangs, calls
// another operation than its peers or returns while they wait for it: PeerLostError with its name and last operations on standard
// error. Where a thread does not come back, or (MPI) a peer process is gone, the process ends by _exit(76) (or the thrown error's
// exit code). The reason of a failed job has been told when run_ranks throws (error_was_told, base/log.h). StoppedError is no
// failure: all ranks throw it, and it leaves when all have.
void run_ranks(int n, const CommOptions& options, const std::function<void(Communicator&)>& fn);

// Each thread rank has its shards, its copy of what is gathered and its stack: UsageError for more than 64 and 8 a core, so that
// a typing error does not take the machine's memory.
void check_thread_ranks(int64_t ranks, const std::string& asked_by);

}  // namespace weft
