#include "weft/io/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "weft/base/error.h"

namespace weft {

AppendFile::AppendFile(std::string path, std::optional<int64_t> keep_bytes) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) throw SystemError(fmt::format("{}: cannot open for writing: {}", path_, std::strerror(errno)));
  struct stat info {};
  const bool known = ::fstat(fd_, &info) == 0;
  size_ = static_cast<int64_t>(info.st_size);
  if (known && keep_bytes && *keep_bytes <= size_ && ::ftruncate(fd_, *keep_bytes) == 0) {
    size_ = *keep_bytes;
  } else if (!known || keep_bytes) {
    const int error = errno;
    ::close(fd_);
    if (known && *keep_bytes > size_) {
      throw FileError(path_, "",
                      fmt::format("has {} bytes, {} expected: it was changed since the checkpoint", size_, *keep_bytes));
    }
    throw SystemError(fmt::format("{}: cannot cut to a given size: {}", path_, std::strerror(error)));
  }
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

void AppendFile::append(std::span<const std::byte> record) {
  while (!record.empty()) {
    const ssize_t n = ::write(fd_, record.data(), record.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw SystemError(fmt::format("{}: cannot write: {}; free space on this disk or choose another output directory", path_,
                                    std::strerror(errno)));
    }
    size_ += n;
    record = record.subspan(static_cast<size_t>(n));
  }
}

}  // namespace weft
