// libFuzzer target: a safetensors file from bytes. A weft::Error is a right answer; anything else is a bug.

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "weft/base/error.h"
#include "weft/io/safetensors.h"

namespace {

// The reader maps files, so each input becomes one, in memory where the machine has /dev/shm.
std::string scratch_path() {
  const char* dir = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  return std::string(dir) + "/weft-fuzz-safetensors-" + std::to_string(::getpid());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path = scratch_path();
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(data, 1, size, file) != size || std::fclose(file) != 0) std::abort();
  try {
    const weft::SafetensorsFile tensors(path);
    int64_t total = 0;
    unsigned sum = 0;
    for (const weft::TensorInfo& info : tensors.tensors()) {
      total += info.num_bytes();
      for (const std::byte b : tensors.bytes(info.name)) sum += static_cast<unsigned>(b);
    }
    // Tensors tile the data, so their bytes never exceed the file.
    if (total > static_cast<int64_t>(size) || sum == 0xffffffffu) std::abort();
  } catch (const weft::Error&) {
  }
  ::unlink(path.c_str());
  return 0;
}
