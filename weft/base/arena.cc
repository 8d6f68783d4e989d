#include "weft/base/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "weft/base/clock.h"
#include "weft/base/error.h"

namespace weft {
namespace {

constexpr int64_t kLargePage = int64_t{2} << 20, kAlignment = 64;
// Small allocations share a mapping; what is never touched of it costs nothing.
constexpr int64_t kShared = int64_t{1} << 20;
constexpr int64_t kPiece = int64_t{8} << 20;  // of one read or write

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

std::string in_mb(int64_t bytes) { return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6); }

// All of it, or an errno.
int write_all(int file, const char* from, int64_t size, int64_t at) {
  while (size > 0) {
    const ssize_t n = pwrite(file, from, static_cast<size_t>(std::min(size, kPiece)), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : ENOSPC;
    from += n, at += n, size -= n;
  }
  return 0;
}

int read_all(int file, char* to, int64_t size, int64_t at) {
  while (size > 0) {
    const ssize_t n = pread(file, to, static_cast<size_t>(std::min(size, kPiece)), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;  // shorter than it was written
    to += n, at += n, size -= n;
  }
  return 0;
}

}  // namespace

Arena::Arena(std::string name, bool huge_pages) : name_(std::move(name)), huge_pages_(huge_pages) {}

Arena::~Arena() {
  for (const Mapping& m : mappings_) munmap(m.data, static_cast<size_t>(m.size));
  if (file_ >= 0) close(file_);
}

void Arena::map(int64_t bytes) {
  const bool huge = huge_pages_ && bytes >= kLargePage;
  Mapping m;
  m.size = round_up(bytes, huge ? kLargePage : sysconf(_SC_PAGESIZE));
  const int64_t extra = huge ? kLargePage : 0;
  void* p = mmap(nullptr, static_cast<size_t>(m.size + extra), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw SystemError(fmt::format("{}: cannot map {} bytes: {}", name_, bytes, std::strerror(errno)));
  m.data = static_cast<char*>(p);
  if (huge) {  // from a multiple of a huge page on
    char* const begin = reinterpret_cast<char*>(round_up(static_cast<int64_t>(reinterpret_cast<intptr_t>(p)), kLargePage));
    const int64_t before = begin - m.data;
    if (before > 0) munmap(m.data, static_cast<size_t>(before));
    if (extra > before) munmap(begin + m.size, static_cast<size_t>(extra - before));
    m.data = begin;
    madvise(m.data, static_cast<size_t>(m.size), MADV_HUGEPAGE);
  }
  mappings_.push_back(m);
}

void* Arena::allocate(int64_t bytes) {
  WEFT_CHECK(bytes >= 0, "{}: allocation of {} bytes", name_, bytes);
  if (!has_memory()) refuse();
  const int64_t size = round_up(std::max<int64_t>(bytes, 1), kAlignment);
  if (mappings_.empty() || mappings_.back().size - mappings_.back().used < size) map(std::max(size, kShared));
  Mapping& m = mappings_.back();
  void* const out = m.data + m.used;
  m.used += size;
  bytes_ += size;
  return out;
}

void Arena::refuse() const {
  if (state_ == State::kEmpty)
    throw ValueError(name_ + " has been woken after its contents were discarded: fill it first (weights: by a refit)");
  throw ValueError(name_ + " is asleep: wake it first");
}

void Arena::give_back() {
  for (const Mapping& m : mappings_) {
    const size_t n = static_cast<size_t>(m.size);
    WEFT_CHECK(madvise(m.data, n, MADV_DONTNEED) == 0 && mprotect(m.data, n, PROT_NONE) == 0, "{}: {}", name_,
               std::strerror(errno));
  }
}

void Arena::discard() {
  if (state_ == State::kDiscarded) return;
  if (has_memory()) give_back();
  state_ = State::kDiscarded;
  ++losses_;
}

void Arena::open_file(const std::string& directory) {
  if (file_ >= 0 && directory == directory_) return;
  if (file_ >= 0) close(file_);
  file_ = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {  // a file system without nameless files
    std::string path = directory + "/" + name_ + ".XXXXXX";
    file_ = mkostemp(path.data(), O_CLOEXEC);
    if (file_ >= 0) unlink(path.c_str());
  }
  if (file_ < 0) throw SystemError(fmt::format("{}: cannot keep {} here: {}", directory, name_, std::strerror(errno)));
  directory_ = directory;
}

void Arena::store(const std::string& directory) {
  require();
  const double start = real_clock().now();
  open_file(directory);
  int64_t at = 0;
  int error = 0;
  for (const Mapping& m : mappings_) {
    if (error == 0) error = write_all(file_, m.data, m.used, at);
    at += m.used;
  }
  // Until it is on the disk its pages are in memory all the same.
  if (error == 0 && fdatasync(file_) != 0) error = errno;
  if (error != 0) {
    (void)!ftruncate(file_, 0);
    throw SystemError(
        fmt::format("{}: cannot keep {} ({}) here: {}. It stays in memory; memory.store_dir names another directory", directory,
                    name_, in_mb(bytes_), std::strerror(error)));
  }
  posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
  give_back();
  state_ = State::kStored;
  traffic_.stored += at;
  traffic_.store_seconds += real_clock().now() - start;
}

void Arena::wake() {
  if (has_memory()) return;
  const double start = real_clock().now();
  for (const Mapping& m : mappings_)
    if (mprotect(m.data, static_cast<size_t>(m.size), PROT_READ | PROT_WRITE) != 0)
      throw SystemError(fmt::format("{}: cannot wake {}: {}", name_, in_mb(bytes_), std::strerror(errno)));
  if (state_ == State::kDiscarded) {
    state_ = State::kEmpty;
    return;
  }
  int64_t at = 0;
  for (const Mapping& m : mappings_) {
    if (const int error = read_all(file_, m.data, m.used, at))
      throw SystemError(fmt::format("{}: cannot read {} ({}) back: {}", directory_, name_, in_mb(bytes_), std::strerror(error)));
    at += m.used;
  }
  posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
  state_ = State::kAwake;
  traffic_.read += at;
  traffic_.read_seconds += real_clock().now() - start;
}

int64_t Arena::resident_bytes() const {
  if (!has_memory()) return 0;
  const int64_t page = sysconf(_SC_PAGESIZE), most = int64_t{1} << 30;
  std::vector<unsigned char> there(static_cast<size_t>(most / page));
  int64_t pages = 0;
  for (const Mapping& m : mappings_)
    for (int64_t at = 0; at < m.size; at += most) {
      const int64_t n = std::min(most, m.size - at);
      WEFT_CHECK(mincore(m.data + at, static_cast<size_t>(n), there.data()) == 0, "{}: {}", name_, std::strerror(errno));
      pages += std::count_if(there.begin(), there.begin() + n / page, [](unsigned char c) { return (c & 1) != 0; });
    }
  return pages * page;
}

void Arena::filled() {
  if (!has_memory()) refuse();
  state_ = State::kAwake;
}

}  // namespace weft
