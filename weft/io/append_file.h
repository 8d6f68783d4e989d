#pragma once
// A file that grows by whole records, each written by one call and visible at once (logs and metrics that are watched while a
// run goes on). Errors: SystemError with path and reason.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace weft {

class AppendFile {
 public:
  // Opens or creates. `keep_bytes` cuts the file to its first so many bytes (what a checkpoint had seen); fewer there: FileError.
  explicit AppendFile(std::string path, std::optional<int64_t> keep_bytes = std::nullopt);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(std::span<const std::byte> record);
  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // bytes; what keep_bytes takes

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

}  // namespace weft
