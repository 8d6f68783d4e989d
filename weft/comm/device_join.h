#pragma once
// Joins parts that lie in device memory, in the order and with the bits of reduce.h. The kernel is device_join_kernel.inc, compiled by
// NVRTC when a device first needs it, so that no build needs nvcc.

#include <string>
#include <vector>

#define WEFT_JOIN_KERNEL(...) __VA_ARGS__
#define WEFT_NOT_UNROLLED

namespace weft::device_join {

#include "weft/comm/device_join_kernel.inc"

}  // namespace weft::device_join

#undef WEFT_JOIN_KERNEL
#undef WEFT_NOT_UNROLLED

namespace weft {

using device_join::JoinArgs;

// The program for an architecture ("sm_90"); needs no GPU. Throws SystemError with the compiler's words. Builds with NCCL only.
std::vector<char> compile_join(const std::string& architecture);

// Compiles and loads it for `device`, the current one, with a launch on `stream` that joins nothing: loading may wait for the whole
// device, which must not happen while a message waits for its peer. Throws SystemError. Builds with NCCL only.
void prepare_join(int device, void* stream);

// Enqueues the join on `stream` (a cudaStream_t) of the current device, `device`. Throws SystemError. Any thread. Builds with NCCL only.
void launch_join(const JoinArgs& args, int device, void* stream);

}  // namespace weft
