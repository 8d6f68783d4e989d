#include "weft/base/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "weft/base/clock.h"
#include "weft/base/error.h"

extern char** environ;

namespace weft {
namespace {

constexpr size_t kMaxStderrLine = 4096;
constexpr size_t kReadChunk = size_t{1} << 16;

void close_fd(int* fd) {
  if (*fd >= 0) ::close(*fd);
  *fd = -1;
}

// Both ends close on exec, and neither is 0, 1 or 2 (which a caller may have closed): dup2 in the child must not meet itself.
struct Pipe {
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw SystemError(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
    read = ends[0];
    write = ends[1];
    lift(&read);
    lift(&write);
  }
  ~Pipe() {
    close_fd(&read);
    close_fd(&write);
  }
  void lift(int* fd) {
    if (*fd > STDERR_FILENO) return;
    const int higher = fcntl(*fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int error = errno;
    close_fd(fd);
    *fd = higher;
    if (higher < 0) {
      close_fd(&read);
      close_fd(&write);
      throw SystemError(fmt::format("cannot make a pipe: {}", std::strerror(error)));
    }
  }
  int release(int* fd) {
    const int value = *fd;
    *fd = -1;
    return value;
  }
  int read = -1, write = -1;
};

std::vector<std::string> child_environment(const SubprocessOptions& options) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool replaced = std::any_of(options.environment.begin(), options.environment.end(),
                                      [&](const auto& added) { return added.first == name; });
    if (!replaced) all.emplace_back(text);
  }
  for (const auto& [name, value] : options.environment) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (auto& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Writing to a pipe whose reader left raises SIGPIPE in the writing thread; here it is held back and taken away again, so that
// the process's own handling of SIGPIPE stays what the caller chose.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &old_);
  }
  ~NoSigpipe() {
    const int error = errno;
    if (!was_pending_) {
      const timespec none{};
      while (sigtimedwait(&pipe_, nullptr, &none) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &old_, nullptr);
    errno = error;
  }

 private:
  sigset_t pipe_, old_;
  bool was_pending_ = false;
};

double deadline_after(double timeout_s) { return real_clock().now() + timeout_s; }

// Milliseconds for poll, rounded up: never a busy loop before the deadline.
int poll_time(double deadline) {
  const double left = deadline - real_clock().now();
  if (!(left > 0)) return 0;
  if (left > 3600) return 3600 * 1000;
  return static_cast<int>(std::ceil(left * 1000));
}

}  // namespace

Subprocess::Subprocess(SubprocessOptions options) : options_(std::move(options)) {
  WEFT_CHECK(!options_.argv.empty(), "a program to start needs a name");
  start();
}

Subprocess::~Subprocess() {
  try {
    kill();
  } catch (...) {  // a failing stderr callback must not end the program while it is cleaning up
  }
  for (int* fd : {&stdin_, &stdout_, &stderr_}) close_fd(fd);
}

void Subprocess::start() {
  Pipe in, out, err;
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, in.read, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.write, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write, STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);  // those of ours that stay open on exec
  if (!options_.working_directory.empty()) posix_spawn_file_actions_addchdir_np(&actions, options_.working_directory.c_str());
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  std::vector<std::string> environment = child_environment(options_);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, options_.argv[0].c_str(), &actions, &attributes, pointers(options_.argv).data(),
                                 pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    const std::string place =
        options_.working_directory.empty() ? "" : fmt::format(" in directory '{}'", options_.working_directory);
    throw SystemError(fmt::format("cannot start the program '{}'{}: {}", options_.argv[0], place, std::strerror(error)));
  }
  pid_ = pid;
  stdin_ = in.release(&in.write);
  stdout_ = out.release(&out.read);
  stderr_ = err.release(&err.read);
  for (const int fd : {stdin_, stdout_, stderr_}) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

// Waits for one event on the pipes until the deadline and serves it; false when the deadline came first.
bool Subprocess::pump(double deadline) {
  std::array<pollfd, 3> polls{};  // negative descriptors are skipped
  polls[0] = {sent_ < outgoing_.size() ? stdin_ : -1, POLLOUT, 0};
  polls[1] = {stdout_, POLLIN, 0};
  polls[2] = {stderr_, POLLIN, 0};
  const int ready = poll(polls.data(), polls.size(), poll_time(deadline));
  if (ready < 0 && errno != EINTR) throw SystemError(fmt::format("waiting for a pipe failed: {}", std::strerror(errno)));
  if (ready <= 0) return real_clock().now() < deadline;  // also a signal: the deadline decides
  if (polls[0].revents != 0) send_some();
  if (polls[1].revents != 0) receive_some(&stdout_, &incoming_);
  if (polls[2].revents != 0) {
    receive_some(&stderr_, &error_buffer_);
    split_stderr(stderr_ < 0);
  }
  return true;
}

void Subprocess::send_some() {
  const NoSigpipe guard;
  const ssize_t n = ::write(stdin_, outgoing_.data() + sent_, outgoing_.size() - sent_);
  if (n > 0) {
    sent_ += static_cast<size_t>(n);
  } else if (n < 0 && errno == EPIPE) {
    close_fd(&stdin_);
  } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
    throw SystemError(fmt::format("writing to '{}' failed: {}", options_.argv[0], std::strerror(errno)));
  }
}

void Subprocess::receive_some(int* fd, std::string* buffer) {
  const size_t held = buffer->size();
  buffer->resize(held + kReadChunk);
  const ssize_t n = ::read(*fd, buffer->data() + held, kReadChunk);
  const int error = errno;
  buffer->resize(held + static_cast<size_t>(std::max<ssize_t>(n, 0)));
  if (n == 0) {
    close_fd(fd);
  } else if (n < 0 && error != EAGAIN && error != EINTR) {
    throw SystemError(fmt::format("reading from '{}' failed: {}", options_.argv[0], std::strerror(error)));
  }
}

void Subprocess::split_stderr(bool at_end) {
  size_t start = 0;
  const auto add = [&](std::string_view line) {
    line = line.substr(0, kMaxStderrLine);
    error_lines_.emplace_back(line);
    while (static_cast<int64_t>(error_lines_.size()) > options_.stderr_lines) error_lines_.pop_front();
    if (options_.on_stderr_line) options_.on_stderr_line(line);
  };
  for (size_t end; (end = error_buffer_.find('\n', start)) != std::string::npos; start = end + 1)
    add(std::string_view(error_buffer_).substr(start, end - start));
  // A line without end is cut where it grows too long: a progress bar may never end its line.
  if (start < error_buffer_.size() && (at_end || error_buffer_.size() - start > kMaxStderrLine)) {
    add(std::string_view(error_buffer_).substr(start));
    start = error_buffer_.size();
  }
  error_buffer_.erase(0, start);
}

PipeStatus Subprocess::write_line(std::string_view line, double timeout_s) {
  WEFT_CHECK(sent_ == outgoing_.size(), "a line is written after one that did not get through");
  const double deadline = deadline_after(timeout_s);
  outgoing_.assign(line).push_back('\n');
  sent_ = 0;
  while (stdin_ >= 0 && sent_ < outgoing_.size())
    if (!pump(deadline)) return PipeStatus::kTimeout;
  const bool whole = sent_ == outgoing_.size();
  outgoing_.clear();
  sent_ = 0;
  return whole ? PipeStatus::kDone : PipeStatus::kClosed;
}

PipeStatus Subprocess::read_line(std::string* line, double timeout_s) {
  const double deadline = deadline_after(timeout_s);
  while (true) {
    const size_t end = incoming_.find('\n', scanned_);
    if (end != std::string::npos || (stdout_ < 0 && !incoming_.empty())) {
      line->assign(incoming_, 0, end);
      incoming_.erase(0, end == std::string::npos ? end : end + 1);
      scanned_ = 0;
      return PipeStatus::kDone;
    }
    scanned_ = incoming_.size();
    if (static_cast<int64_t>(scanned_) > options_.max_line_bytes)
      throw SystemError(fmt::format("'{}' wrote more than {} bytes to its standard output without a line end", options_.argv[0],
                                    options_.max_line_bytes));
    if (stdout_ < 0) return PipeStatus::kClosed;
    if (!pump(deadline)) return PipeStatus::kTimeout;
  }
}

void Subprocess::close_input() { close_fd(&stdin_); }

bool Subprocess::finish(double timeout_s) {
  if (finished_) return true;
  const double deadline = deadline_after(timeout_s);
  bool exited = false;
  outgoing_.clear();
  sent_ = 0;
  // The program is looked at without being reaped: until its group is killed, its process id must not be given away again.
  for (double pause = 0.001;; pause = std::min(pause * 2, 0.05)) {
    siginfo_t info{};
    exited = waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
    const double left = deadline - real_clock().now();
    if (exited || !(left > 0)) break;
    if (stdout_ < 0 && stderr_ < 0) {
      real_clock().sleep(std::min(pause, left));
    } else {
      pump(real_clock().now() + std::min(pause, left));  // it may be blocked on a full pipe
      if (static_cast<int64_t>(incoming_.size()) > options_.max_line_bytes) incoming_.clear();
    }
  }
  ::kill(-static_cast<pid_t>(pid_), SIGKILL);
  while (waitpid(static_cast<pid_t>(pid_), &wait_status_, 0) < 0 && errno == EINTR) {
  }
  finished_ = true;
  pid_ = 0;
  close_fd(&stdin_);
  // What it wrote last is still in the pipes. A process that left the group may hold them open and go on writing, so only
  // what is there is read, and not without end.
  for (int reads = 0; reads < 256 && (stdout_ >= 0 || stderr_ >= 0); ++reads)
    if (!pump(real_clock().now())) break;
  close_fd(&stdout_);
  close_fd(&stderr_);
  split_stderr(true);
  return exited;
}

int Subprocess::exit_code() const {
  WEFT_CHECK(finished_, "the exit code of a program that runs");
  return WIFEXITED(wait_status_) ? WEXITSTATUS(wait_status_) : 128 + WTERMSIG(wait_status_);
}

std::string Subprocess::exit_text() const {
  if (!finished_) return "running";
  if (WIFEXITED(wait_status_)) return fmt::format("exit code {}", WEXITSTATUS(wait_status_));
  const int signal = WTERMSIG(wait_status_);
  return fmt::format("signal {} ({})", signal, strsignal(signal));
}

std::string Subprocess::stderr_tail() const {
  std::string text;
  for (const auto& line : error_lines_) text.append(text.empty() ? "" : "\n").append(line);
  return text;
}

}  // namespace weft
