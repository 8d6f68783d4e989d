#ifdef WEFT_HAVE_NCCL
#include "weft/comm/nccl_api.h"

#include <dlfcn.h>

#include <string>
#include <vector>

namespace weft {
namespace {

// The headers declare what the table says.
#define WEFT_SAME(name, ...) static_assert(sizeof(static_cast<FunctionPointer<__VA_ARGS__>>(&::name)) > 0);
WEFT_CUDA_FUNCTIONS(WEFT_SAME)
WEFT_NVRTC_FUNCTIONS(WEFT_SAME)
WEFT_NCCL_FUNCTIONS(WEFT_SAME)
#undef WEFT_SAME

// `built_with`: the file that the build found; its name is the library's.
void* load(const std::string& built_with, const char* package) {
  const std::string name = built_with.substr(built_with.rfind('/') + 1);
  // Never unloaded: CUDA has threads and handlers of its own.
  if (void* loaded = ::dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD)) return loaded;
  if (void* loaded = ::dlopen(built_with.c_str(), RTLD_NOW)) return loaded;
  const char* first = ::dlerror();
  const std::string reason = first ? first : "unknown";
  if (void* loaded = ::dlopen(name.c_str(), RTLD_NOW)) return loaded;
  throw SystemError(fmt::format("device memory needs {}, which cannot be loaded: {}. Install {} where weft was built, or name its folder in "
                                "LD_LIBRARY_PATH", name, reason, package));
}

template <class F>
void find(void* library, const char* name, const char* package, F** out) {
  *out = reinterpret_cast<F*>(::dlsym(library, name));
  if (!*out) throw SystemError(fmt::format("{} has no function {}: it is older than the one that weft was built with ({} {})", package, name,
                                           package, std::string(package) == "NCCL" ? NCCL_VERSION_CODE : CUDART_VERSION));
}

GpuApi load_all() {
  GpuApi api;
#define WEFT_FIND(name, ...) find(library, #name, package, &api.name);
  {
    const char* package = "the CUDA runtime";
    void* library = load(WEFT_CUDART_LIBRARY, package);
    WEFT_CUDA_FUNCTIONS(WEFT_FIND)
  }
  {
    const char* package = "NVRTC";
    void* library = load(WEFT_NVRTC_LIBRARY, package);
    WEFT_NVRTC_FUNCTIONS(WEFT_FIND)
  }
  {
    const char* package = "NCCL";
    void* library = load(WEFT_NCCL_LIBRARY, package);
    WEFT_NCCL_FUNCTIONS(WEFT_FIND)
  }
#undef WEFT_FIND
  return api;
}

const char* advice(ncclResult_t code) {
  switch (code) {
    case ncclUnhandledCudaError: return "a CUDA call failed: NCCL_DEBUG=WARN shows which; memory may be used up";
    case ncclSystemError: return "a call of the system failed: look at the network (NCCL_SOCKET_IFNAME), the size of /dev/shm and the limit "
                                 "of open files; NCCL_DEBUG=INFO shows which";
    case ncclInvalidUsage: return "each rank needs a GPU of its own, and all ranks the same NCCL; NCCL_DEBUG=WARN shows more";
    case ncclRemoteError: return "a peer ended, or the network to it: its log says why";
    default: return "NCCL_DEBUG=WARN shows more";
  }
}

}  // namespace

const GpuApi& gpu_api() {
  static const GpuApi api = load_all();  // one that throws is tried again by the next call
  return api;
}

int gpu_count() {
  int count = 0;
  const cudaError_t code = gpu_api().cudaGetDeviceCount(&count);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) {
    gpu_api().cudaGetLastError();
    return 0;
  }
  check_cuda(code, "cudaGetDeviceCount");
  return count;
}

std::string gpu_versions() {
  int nccl = 0, cuda = 0;
  check_nccl(gpu_api().ncclGetVersion(&nccl), "ncclGetVersion");
  check_cuda(gpu_api().cudaRuntimeGetVersion(&cuda), "cudaRuntimeGetVersion");
  return fmt::format("NCCL {}.{}.{}, CUDA runtime {}.{}", nccl / 10000, nccl / 100 % 100, nccl % 100, cuda / 1000, cuda / 10 % 100);
}

void check_cuda(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  const std::string text = gpu_api().cudaGetErrorString(code);
  gpu_api().cudaGetLastError();  // libtorch would report it as its own
  throw SystemError(fmt::format("{}: {}{}", what, text,
                                code == cudaErrorMemoryAllocation ? ". Communication needs up to 128 MB a group beside what the model holds" : ""));
}

void check_nccl(ncclResult_t code, const char* what) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  const char* last = gpu_api().ncclGetLastError(nullptr);
  const std::string text = fmt::format("{}: {}{}{}; {}", what, gpu_api().ncclGetErrorString(code), last && *last ? ": " : "", last ? last : "",
                                       advice(code));
  if (code == ncclRemoteError) throw PeerLostError(text);
  throw SystemError(text);
}

}  // namespace weft
#endif
