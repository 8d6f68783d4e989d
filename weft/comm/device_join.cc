#ifdef WEFT_HAVE_NCCL
#include "weft/comm/device_join.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "weft/base/dtype.h"
#include "weft/base/error.h"
#include "weft/mesh/placement.h"

#include "weft/comm/nccl_api.h"

namespace weft {
namespace {

static_assert(static_cast<int>(DType::kF64) == 0 && static_cast<int>(DType::kF32) == 1 && static_cast<int>(DType::kF16) == 2 &&
              static_cast<int>(DType::kBF16) == 3 && static_cast<int>(DType::kI64) == 4 && static_cast<int>(DType::kI32) == 5 &&
              static_cast<int>(DType::kI16) == 6 && static_cast<int>(DType::kI8) == 7 && static_cast<int>(DType::kU8) == 8 &&
              static_cast<int>(DType::kBool) == 9);
static_assert(static_cast<int>(ReduceOp::kSum) == device_join::kJoinSum && static_cast<int>(ReduceOp::kAvg) == device_join::kJoinAvg &&
              static_cast<int>(ReduceOp::kMin) == device_join::kJoinMin && static_cast<int>(ReduceOp::kMax) == device_join::kJoinMax);

#define WEFT_JOIN_KERNEL(...) #__VA_ARGS__
constexpr const char* kFunctions =
#include "weft/comm/device_join_kernel.inc"
    ;
#undef WEFT_JOIN_KERNEL
constexpr const char* kEntry =
    "\nextern \"C\" __global__ void weft_join(JoinArgs a) {"
    "  join_elements(a, blockIdx.x * (long long)blockDim.x + threadIdx.x, gridDim.x * (long long)blockDim.x); }\n";
constexpr unsigned kThreads = 256;
constexpr int64_t kMaxBlocks = 1024;  // fills any GPU; more would only take its cores from the computation beside it

void check_nvrtc(nvrtcResult code, const char* what) {
  if (code != NVRTC_SUCCESS) throw SystemError(fmt::format("{}: {}", what, gpu_api().nvrtcGetErrorString(code)));
}

// Of one device; compiled once per architecture and process, and kept.
cudaKernel_t join_kernel(int device) {
  static std::mutex mutex;
  static std::map<std::string, cudaKernel_t> kernels;
  const GpuApi& api = gpu_api();
  int major = 0, minor = 0;
  check_cuda(api.cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  check_cuda(api.cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  const std::string architecture = fmt::format("sm_{}{}", major, minor);
  std::lock_guard lock(mutex);
  const auto found = kernels.find(architecture);
  if (found != kernels.end()) return found->second;
  const std::vector<char> program = compile_join(architecture);
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
  check_cuda(api.cudaLibraryLoadData(&library, program.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cudaLibraryLoadData");
  check_cuda(api.cudaLibraryGetKernel(&kernel, library, "weft_join"), "cudaLibraryGetKernel");
  kernels[architecture] = kernel;
  return kernel;
}

}  // namespace

std::vector<char> compile_join(const std::string& architecture) {
  const GpuApi& api = gpu_api();
  const std::string source = std::string(kFunctions) + kEntry;
  const std::string target = "--gpu-architecture=" + architecture;
  // No contraction, exact division: the arithmetic of the CPU.
  const char* options[] = {target.c_str(), "--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "-default-device",
                           "-DWEFT_NOT_UNROLLED=_Pragma(\"unroll 1\")"};
  nvrtcProgram program = nullptr;
  check_nvrtc(api.nvrtcCreateProgram(&program, source.c_str(), "device_join_kernel.inc", 0, nullptr, nullptr), "nvrtcCreateProgram");
  const nvrtcResult compiled = api.nvrtcCompileProgram(program, static_cast<int>(std::size(options)), options);
  std::vector<char> out;
  size_t size = 0;
  if (compiled == NVRTC_SUCCESS) {
    check_nvrtc(api.nvrtcGetCUBINSize(program, &size), "nvrtcGetCUBINSize");
    out.resize(size);
    check_nvrtc(api.nvrtcGetCUBIN(program, out.data()), "nvrtcGetCUBIN");
    api.nvrtcDestroyProgram(&program);
    return out;
  }
  std::string log;
  if (api.nvrtcGetProgramLogSize(program, &size) == NVRTC_SUCCESS && size > 1) {
    log.resize(size);
    api.nvrtcGetProgramLog(program, log.data());
    log.resize(std::min<size_t>(size - 1, 1000));
  }
  api.nvrtcDestroyProgram(&program);
  throw SystemError(fmt::format("NVRTC cannot compile the sums for {}: {}{}{}. A GPU newer than this CUDA needs a newer NVRTC", architecture,
                                api.nvrtcGetErrorString(compiled), log.empty() ? "" : ": ", log));
}

void prepare_join(int device, void* stream) {
  JoinArgs nothing{};
  void* parameters[] = {&nothing};
  check_cuda(gpu_api().cudaLaunchKernel(reinterpret_cast<const void*>(join_kernel(device)), dim3(1), dim3(1), parameters, 0,
                                        static_cast<cudaStream_t>(stream)),
             "cudaLaunchKernel");
}

void launch_join(const JoinArgs& args, int device, void* stream) {
  if (args.count <= 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((args.count + kThreads - 1) / kThreads, kMaxBlocks));
  JoinArgs copy = args;
  void* parameters[] = {&copy};
  check_cuda(gpu_api().cudaLaunchKernel(reinterpret_cast<const void*>(join_kernel(device)), dim3(blocks), dim3(kThreads), parameters, 0,
                                        static_cast<cudaStream_t>(stream)),
             "cudaLaunchKernel");
}

}  // namespace weft
#endif
