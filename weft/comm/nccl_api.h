#pragma once
// The functions of NCCL, the CUDA runtime and NVRTC that weft calls, found in their libraries when a job first asks for device
// memory. Nothing is linked: a program built with NCCL starts where these libraries are not, runs on host memory without loading
// them, and says what is missing when it needs them. A library that the process has loaded already (libtorch's) is taken first, then
// the one of the build, then what the loader finds.
//
// For .cc files of builds with NCCL only; includes CUDA's headers, whose macros belong behind all others.

#include <string>

#include "weft/comm/job_failure.h"

#include <cuda_runtime_api.h>
#include <nvrtc.h>
#include <nccl.h>

static_assert(CUDART_VERSION >= 12080, "weft/comm needs CUDA 12.8 or newer: cudaLibraryLoadData in the runtime");
static_assert(NCCL_VERSION_CODE >= 21800, "weft/comm needs NCCL 2.18 or newer: communicators that do not block");

namespace weft {

// X(name, type of the function); the headers of C++ overload some names.
#define WEFT_CUDA_FUNCTIONS(X)                                                                              \
  X(cudaRuntimeGetVersion, cudaError_t(int*))                                                               \
  X(cudaGetErrorString, const char*(cudaError_t))                                                           \
  X(cudaGetLastError, cudaError_t())                                                                        \
  X(cudaGetDeviceCount, cudaError_t(int*))                                                                  \
  X(cudaSetDevice, cudaError_t(int))                                                                        \
  X(cudaDeviceGetAttribute, cudaError_t(int*, cudaDeviceAttr, int))                                         \
  X(cudaPointerGetAttributes, cudaError_t(cudaPointerAttributes*, const void*))                             \
  X(cudaMalloc, cudaError_t(void**, size_t))                                                                \
  X(cudaFree, cudaError_t(void*))                                                                           \
  X(cudaMemcpyAsync, cudaError_t(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t))                 \
  X(cudaStreamCreateWithFlags, cudaError_t(cudaStream_t*, unsigned))                                        \
  X(cudaStreamSynchronize, cudaError_t(cudaStream_t))                                                       \
  X(cudaStreamWaitEvent, cudaError_t(cudaStream_t, cudaEvent_t, unsigned))                                  \
  X(cudaStreamDestroy, cudaError_t(cudaStream_t))                                                           \
  X(cudaEventCreateWithFlags, cudaError_t(cudaEvent_t*, unsigned))                                          \
  X(cudaEventRecord, cudaError_t(cudaEvent_t, cudaStream_t))                                                \
  X(cudaEventQuery, cudaError_t(cudaEvent_t))                                                               \
  X(cudaEventDestroy, cudaError_t(cudaEvent_t))                                                             \
  X(cudaLibraryLoadData, cudaError_t(cudaLibrary_t*, const void*, cudaJitOption*, void**, unsigned, cudaLibraryOption*, void**, unsigned)) \
  X(cudaLibraryGetKernel, cudaError_t(cudaKernel_t*, cudaLibrary_t, const char*))                           \
  X(cudaLaunchKernel, cudaError_t(const void*, dim3, dim3, void**, size_t, cudaStream_t))

#define WEFT_NVRTC_FUNCTIONS(X)                                                                             \
  X(nvrtcCreateProgram, nvrtcResult(nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*)) \
  X(nvrtcCompileProgram, nvrtcResult(nvrtcProgram, int, const char* const*))                                \
  X(nvrtcGetCUBINSize, nvrtcResult(nvrtcProgram, size_t*))                                                  \
  X(nvrtcGetCUBIN, nvrtcResult(nvrtcProgram, char*))                                                        \
  X(nvrtcGetProgramLogSize, nvrtcResult(nvrtcProgram, size_t*))                                             \
  X(nvrtcGetProgramLog, nvrtcResult(nvrtcProgram, char*))                                                   \
  X(nvrtcDestroyProgram, nvrtcResult(nvrtcProgram*))                                                        \
  X(nvrtcGetErrorString, const char*(nvrtcResult))

#define WEFT_NCCL_FUNCTIONS(X)                                                                              \
  X(ncclGetVersion, ncclResult_t(int*))                                                                     \
  X(ncclGetErrorString, const char*(ncclResult_t))                                                          \
  X(ncclGetLastError, const char*(ncclComm_t))                                                              \
  X(ncclGetUniqueId, ncclResult_t(ncclUniqueId*))                                                           \
  X(ncclCommInitRankConfig, ncclResult_t(ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*))               \
  X(ncclCommGetAsyncError, ncclResult_t(ncclComm_t, ncclResult_t*))                                         \
  X(ncclCommFinalize, ncclResult_t(ncclComm_t))                                                             \
  X(ncclCommDestroy, ncclResult_t(ncclComm_t))                                                              \
  X(ncclCommAbort, ncclResult_t(ncclComm_t))                                                                \
  X(ncclGroupStart, ncclResult_t())                                                                         \
  X(ncclGroupEnd, ncclResult_t())                                                                           \
  X(ncclSend, ncclResult_t(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))             \
  X(ncclRecv, ncclResult_t(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))

template <class F>
using FunctionPointer = F*;

struct GpuApi {
#define WEFT_MEMBER(name, ...) FunctionPointer<__VA_ARGS__> name = nullptr;
  WEFT_CUDA_FUNCTIONS(WEFT_MEMBER)
  WEFT_NVRTC_FUNCTIONS(WEFT_MEMBER)
  WEFT_NCCL_FUNCTIONS(WEFT_MEMBER)
#undef WEFT_MEMBER
};

// Loads all three at the first call, in any thread. Throws SystemError: which library or function is missing, and what to do.
const GpuApi& gpu_api();

// GPUs that this process may use; 0 where there is no driver. Throws SystemError where the driver refuses for another reason.
int gpu_count();

// "NCCL 2.30.7, CUDA runtime 13.2": of the libraries loaded.
std::string gpu_versions();

// SystemError with CUDA's text; memory that is used up says so.
void check_cuda(cudaError_t code, const char* what);
// ncclSuccess and ncclInProgress pass. PeerLostError where a peer or the way to it is lost, else SystemError, both with NCCL's last
// message and what to do.
void check_nccl(ncclResult_t code, const char* what);

}  // namespace weft
