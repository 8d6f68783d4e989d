#pragma once
// Ranks that are processes started by mpirun or srun, one rank a process. Pieces travel as non-blocking sends and receives of bytes;
// MPI's own collectives and reductions are not used: sums are joined here, in the order of reduce.h. Parts to be joined come in
// segments of 1 MB, two under way, so that staging is 2 MB a peer whatever the size.
//
// MPI makes no progress by itself: somebody calls it, the rank's communication thread or the rank in a wait, one at a time
// (MPI_THREAD_SERIALIZED). A build without MPI has these functions too; they throw SystemError.

#include <memory>

#include "weft/comm/job_failure.h"
#include "weft/comm/operation.h"

namespace weft {

struct MpiWorld {
  int rank = 0, size = 1;
};

// Starts MPI where it has not been started. It ends with the process, unless a job failed. Throws SystemError.
MpiWorld start_mpi();

std::unique_ptr<CommEngine> make_mpi_engine();

// Small blocking collectives on the world for the start of a job.
int64_t mpi_broadcast(int64_t value);  // rank 0's
void mpi_barrier();
// For the end: returns when all ranks have come, or the job has failed. Naps between looks.
void mpi_leave(const JobFailure& failure);
// MPI shall not be ended with the process: a peer is lost.
void abandon_mpi();

}  // namespace weft
