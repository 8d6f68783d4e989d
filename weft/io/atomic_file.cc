#include "weft/io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>

#include "weft/base/error.h"
#include "weft/io/file_failure.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Small writes are gathered: a tensor file holds thousands of short rows.
constexpr size_t kBufferBytes = size_t{1} << 20;

std::string unique_suffix() {
  static std::atomic<int64_t> counter{0};
  return fmt::format(".tmp-{}-{}", ::getpid(), counter.fetch_add(1));
}

void sync_path(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) throw_file_failure(path, "open for sync", errno);
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  // Some network and overlay file systems do not sync directories at all and say EINVAL.
  if (result != 0 && !(error == EINVAL && (flags & O_DIRECTORY) != 0)) throw_file_failure(path, "sync", error);
}

std::string parent_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), temporary_(path_ + unique_suffix()) {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) throw_file_failure(path_, "create", errno);
  buffer_.reserve(kBufferBytes);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* action, int error) {
  ::close(fd_);
  fd_ = -1;
  ::unlink(temporary_.c_str());
  throw_file_failure(path_, action, error);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  WEFT_CHECK(fd_ >= 0, "write to {} after commit or failure", path_);
  bytes_written_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    if (buffer_.empty() && bytes.size() >= kBufferBytes) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("write", errno);
      bytes = bytes.subspan(static_cast<size_t>(n));
      continue;
    }
    const size_t n = std::min(bytes.size(), kBufferBytes - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
    bytes = bytes.subspan(n);
    if (buffer_.size() == kBufferBytes) flush();
  }
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t n = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", errno);
    done += static_cast<size_t>(n);
  }
  buffer_.clear();
}

void AtomicFile::commit() {
  WEFT_CHECK(fd_ >= 0, "second commit of {}", path_);
  flush();
  if (::fsync(fd_) != 0) fail("sync", errno);
  // Network file systems report a full disk at close.
  if (::close(fd_) != 0) {
    const int error = errno;
    fd_ = -1;
    ::unlink(temporary_.c_str());
    throw_file_failure(path_, "close", error);
  }
  fd_ = -1;
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    throw_file_failure(path_, "rename the finished file to this name", error);
  }
  sync_path(parent_of(path_), O_RDONLY | O_DIRECTORY);
}

void write_file_atomically(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

std::string read_text_file(const std::string& path, int64_t max_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe in its place must not hang the open
  if (fd < 0) throw FileError(path, "", fmt::format("cannot open: {}", std::strerror(errno)));
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw FileError(path, "", "not a regular file");
  }
  if (info.st_size > max_bytes) {
    ::close(fd);
    throw FileError(path, "", fmt::format("{} bytes, more than the limit of {}", static_cast<int64_t>(info.st_size), max_bytes));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::read(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      ::close(fd);
      throw FileError(path, fmt::format("byte {}", done), fmt::format("cannot read: {}", std::strerror(error)));
    }
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  ::close(fd);
  text.resize(done);
  return text;
}

AtomicDirectory::AtomicDirectory(std::string path, bool replace)
    : path_(without_trailing_slash(std::move(path))),
      temporary_(fmt::format("{}.tmp-{:08x}{:08x}", path_, std::random_device()(), std::random_device()())),
      replace_(replace) {
  std::error_code code;
  if (!replace && fs::exists(path_, code)) {
    throw SystemError(fmt::format("{}: already exists; remove it or choose another output directory", path_));
  }
  fs::create_directories(temporary_, code);
  if (code) throw_file_failure(path_, "create the directory", code.value());
}

AtomicDirectory::~AtomicDirectory() {
  if (done_) return;
  std::error_code code;
  fs::remove_all(temporary_, code);
}

void AtomicDirectory::commit() {
  WEFT_CHECK(!done_, "second commit of {}", path_);
  for (const auto& entry : fs::recursive_directory_iterator(temporary_)) {
    if (entry.is_symlink()) continue;
    if (entry.is_regular_file()) sync_path(entry.path().string(), O_RDONLY);
    if (entry.is_directory()) sync_path(entry.path().string(), O_RDONLY | O_DIRECTORY);
  }
  sync_path(temporary_, O_RDONLY | O_DIRECTORY);
  const bool had_old = replace_ && fs::exists(path_);
  // One step where the file system can exchange two names; else the old one is aside for a moment.
  const bool exchanged = had_old && ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0;
  const std::string aside = exchanged ? temporary_ : path_ + ".old";
  if (!exchanged) {
    std::error_code code;
    if (had_old) fs::remove_all(aside, code);
    if (had_old && ::rename(path_.c_str(), aside.c_str()) != 0) throw_file_failure(path_, "move the old directory aside", errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      const int error = errno;
      if (had_old) (void)::rename(aside.c_str(), path_.c_str());
      throw_file_failure(path_, "rename the finished directory to this name", error);
    }
  }
  done_ = true;
  sync_path(parent_of(path_), O_RDONLY | O_DIRECTORY);
  std::error_code code;
  if (had_old) fs::remove_all(aside, code);
}

}  // namespace weft
