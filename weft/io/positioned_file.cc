#include "weft/io/positioned_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "weft/base/error.h"
#include "weft/io/file_failure.h"

namespace weft {
namespace {

void write_at(int fd, const std::string& path, int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_file_failure(path, "write", errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

// Network file systems report a full disk at close.
void close_checked(int* fd, const std::string& path) {
  if (::close(std::exchange(*fd, -1)) != 0) throw_file_failure(path, "close", errno);
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

void create_positioned_file(const std::string& path, std::string_view start, int64_t size) {
  WEFT_CHECK(static_cast<int64_t>(start.size()) <= size, "{}: {} bytes, begins with {}", path, size, start.size());
  Descriptor file{::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
  if (file.fd < 0) throw_file_failure(path, "create", errno);
  if (::ftruncate(file.fd, size) != 0) throw_file_failure(path, "extend", errno);
  // Not posix_fallocate, which writes zeros where the file system cannot.
  if (size > 0 && ::fallocate(file.fd, 0, 0, size) != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
    throw_file_failure(path, "take the space", errno);
  write_at(file.fd, path, 0, std::as_bytes(std::span(start)));
  close_checked(&file.fd, path);
}

PositionedFile::PositionedFile(std::string path) : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CLOEXEC)) {
  if (fd_ < 0) throw_file_failure(path_, "open", errno);
}

PositionedFile::~PositionedFile() {
  if (fd_ >= 0) ::close(fd_);
}

void PositionedFile::write(int64_t offset, std::span<const std::byte> bytes) {
  WEFT_CHECK(fd_ >= 0 && offset >= 0, "write to {} at {}", path_, offset);
  write_at(fd_, path_, offset, bytes);
}

void PositionedFile::commit() {
  WEFT_CHECK(fd_ >= 0, "second commit of {}", path_);
  if (::fsync(fd_) != 0) throw_file_failure(path_, "sync", errno);
  close_checked(&fd_, path_);
}

}  // namespace weft
