// libFuzzer target: JSON lines, by random access and as a stream. A weft::Error is a right answer; anything else is a bug, and
// so is a difference between the two readers.

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "weft/base/error.h"
#include "weft/io/jsonl.h"

namespace {

constexpr weft::JsonlLimits kLimits{1000};

std::string scratch_path() {
  const char* dir = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  return std::string(dir) + "/weft-fuzz-jsonl-" + std::to_string(::getpid());
}

// All rows as JSON, or what was wrong.
std::string read_file(const std::string& path) {
  std::string result;
  try {
    const weft::JsonlFile file(path, kLimits);
    for (int64_t row = 0; row < file.size(); ++row) result += file.json(row).dump() + "\n";
  } catch (const weft::Error&) {
    return "error";
  }
  return result;
}

std::string read_stream(const std::string& text) {
  std::string result;
  try {
    std::istringstream stream(text);
    weft::JsonlStream rows(stream, "stream", kLimits);
    while (const auto row = rows.next()) result += rows.parse(*row).dump() + "\n";
  } catch (const weft::Error&) {
    return "error";
  }
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path = scratch_path();
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(data, 1, size, file) != size || std::fclose(file) != 0) std::abort();
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (read_file(path) != read_stream(text)) std::abort();
  ::unlink(path.c_str());
  return 0;
}
