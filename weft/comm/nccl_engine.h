#pragma once
// Device memory: the ranks' GPUs exchange pieces by NCCL's sends and receives, and join them in a kernel of ours with the bits of
// reduce.h; NCCL's own reductions, whose order is theirs, are not used. Made by Communicator::on_device.
//
// Set-up. Collectives of a group have one NCCL communicator and stream. Sends from one member to another have their own, so that a
// receive that waits holds up nothing else: send and recv need no order towards other operations here either. Both are set up when
// first used, by an id that travels over the host group, and live until the job ends. They do not block (NCCL's `blocking = 0`), so
// that a peer that never comes is the watchdog's to find, as on the host. A member of many pairs at a time takes as many of the GPU's
// hardware queues (CUDA_DEVICE_MAX_CONNECTIONS, 8); with more open sends and receives than these they may wait for each other.
//
// Order of streams. An operation begins behind everything that the compute stream (DeviceOptions) had been given when it was
// enqueued: who writes inputs, or still reads what the output will overwrite, on another stream makes the compute stream wait for it
// first. wait() returns on the host when the operation is over on the GPU: after it every stream may read outputs and write
// inputs, and no event is needed. Until then the buffers must not go back to an allocator that gives them to other streams.
//
// Memory is the rank's device's, from cudaMalloc (libtorch's default): NCCL reads it from other GPUs of the process. A host pointer
// is a ValueError. Joins stage the peers' parts in segments, up to 128 MB a group (more only for more than 128 ranks). Threads that call
// in have the rank's device as their current one afterwards.
//
// Errors: SystemError when there is no NCCL in the build, a library is missing, or CUDA or NCCL refuse, with what to do; during an
// operation each of them fails the job, which peers see as PeerLostError. withdraw aborts the NCCL communicator of the operation.

#include <memory>

#include "weft/comm/operation.h"

namespace weft {

struct DeviceOptions;
struct RankContext;

// `context` outlives it. Throws SystemError.
std::unique_ptr<CommEngine> make_nccl_engine(RankContext* context, const DeviceOptions& options);

}  // namespace weft
