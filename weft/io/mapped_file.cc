#include "weft/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "weft/base/error.h"

namespace weft {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe in its place must not hang the open
  if (fd < 0) throw FileError(path, "", fmt::format("cannot open: {}", std::strerror(errno)));
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw FileError(path, "", "not a regular file");
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data_ == MAP_FAILED) {
      const int error = errno;
      data_ = nullptr;
      ::close(fd);
      throw SystemError(fmt::format("{}: cannot map {} bytes: {}", path, size_, std::strerror(error)));
    }
  }
  ::close(fd);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::advise(Advice advice, int64_t begin, int64_t end) const {
  WEFT_CHECK(0 <= begin && begin <= end && end <= size(), "advise [{}, {}) of {} bytes", begin, end, size());
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const bool drop = advice == Advice::kDontNeed;
  const int64_t first = drop ? (begin + page - 1) / page * page : begin / page * page;
  const int64_t last = drop && end < size() ? end / page * page : end;
  if (first >= last) return;
  const int flag = advice == Advice::kSequential ? MADV_SEQUENTIAL
                   : advice == Advice::kRandom   ? MADV_RANDOM
                   : advice == Advice::kWillNeed ? MADV_WILLNEED
                                                 : MADV_DONTNEED;
  // A hint that the kernel declines costs time only, so its result carries no information for the caller.
  (void)::madvise(static_cast<char*>(data_) + first, static_cast<size_t>(last - first), flag);
}

}  // namespace weft
