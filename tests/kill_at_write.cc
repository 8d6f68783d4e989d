// Preloaded into a rank by checkpoint_processes_slow_test: dies by SIGKILL at the n-th call that changes something below a
// checkpoints/ folder, counted from the first that concerns a directory being written. Half of what a write was given is written
// before.
//   WEFT_KILL_RANK  which rank, by OMPI_COMM_WORLD_RANK
//   WEFT_KILL_AT    n, from 1; 0: none
//   WEFT_KILL_LOG   each call counted is a line here
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace {

template <typename F>
F real(F, const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}

std::string path_of(int fd) {
  char text[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  return ::readlink(link.c_str(), text, sizeof text - 1) > 0 ? text : "";
}

std::string path_at(int dir, const char* name) { return *name == '/' || dir == AT_FDCWD ? name : path_of(dir) + "/" + name; }

// True when the call is the one to die at.
bool counts(const char* what, const std::string& path) {
  static const bool here = [] {
    const char *rank = std::getenv("OMPI_COMM_WORLD_RANK"), *wanted = std::getenv("WEFT_KILL_RANK");
    return rank && wanted && std::strcmp(rank, wanted) == 0;
  }();
  static const long at = std::atol(std::getenv("WEFT_KILL_AT") ? std::getenv("WEFT_KILL_AT") : "0");
  static long n = 0;
  static std::mutex mutex;
  if (!here || path.find("/checkpoints/") == std::string::npos) return false;
  const std::lock_guard lock(mutex);
  const size_t step = path.find("/global_step_");
  const bool of_a_save =
      step != std::string::npos && path.find(".tmp-", step) != std::string::npos && std::strcmp(what, "unlink") != 0;
  if (n == 0 && !of_a_save) return false;
  ++n;
  if (FILE* log = std::fopen(std::getenv("WEFT_KILL_LOG"), "a")) {
    std::fprintf(log, "%s %s\n", what, path.c_str());
    std::fclose(log);
  }
  return n == at;
}

void die() { ::raise(SIGKILL); }
void die_if(bool now) {
  if (now) die();
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list args;
  va_start(args, flags);
  const mode_t mode = (flags & O_CREAT) ? va_arg(args, mode_t) : 0;
  va_end(args);
  if (flags & (O_WRONLY | O_RDWR)) die_if(counts("open", path));
  return real(&::open, "open")(path, flags, mode);
}
int mkdir(const char* path, mode_t mode) {
  die_if(counts("mkdir", path));
  return real(&::mkdir, "mkdir")(path, mode);
}
ssize_t write(int fd, const void* data, size_t bytes) {
  const auto next = real(&::write, "write");
  if (fd > 2 && counts("write", path_of(fd))) (void)!next(fd, data, bytes / 2), die();
  return next(fd, data, bytes);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  const auto next = real(&::pwrite, "pwrite");
  if (counts("pwrite", path_of(fd))) (void)!next(fd, data, bytes / 2, offset), die();
  return next(fd, data, bytes, offset);
}
int ftruncate(int fd, off_t size) noexcept {
  die_if(counts("ftruncate", path_of(fd)));
  return real(&::ftruncate, "ftruncate")(fd, size);
}
int fallocate(int fd, int mode, off_t offset, off_t size) {
  die_if(counts("fallocate", path_of(fd)));
  return real(&::fallocate, "fallocate")(fd, mode, offset, size);
}
int fsync(int fd) {
  die_if(counts("fsync", path_of(fd)));
  return real(&::fsync, "fsync")(fd);
}
int rename(const char* from, const char* to) noexcept {
  die_if(counts("rename", to));
  return real(&::rename, "rename")(from, to);
}
int renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) noexcept {
  die_if(counts("rename", path_at(to_dir, to)));
  return real(&::renameat2, "renameat2")(from_dir, from, to_dir, to, flags);
}
int unlink(const char* path) noexcept {
  die_if(counts("unlink", path));
  return real(&::unlink, "unlink")(path);
}
int remove(const char* path) noexcept {
  die_if(counts("unlink", path));
  return real(&::remove, "remove")(path);
}
int unlinkat(int dir, const char* name, int flags) noexcept {
  die_if(counts("unlink", path_at(dir, name)));
  return real(&::unlinkat, "unlinkat")(dir, name, flags);
}

}  // extern "C"
