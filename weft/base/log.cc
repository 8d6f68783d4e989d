#include "weft/base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/this_rank.h"

namespace weft {
namespace {

std::atomic<LogLevel> current_level{LogLevel::kInfo};

// Keeps a line whole when the system takes only a part of it at once (a pipe, more than PIPE_BUF bytes); guards what follows.
std::mutex log_mutex;
struct RankFile {
  int fd = -1;
  std::string held;  // lines from before it was opened
};
std::map<int, RankFile> rank_files;
std::set<std::string, std::less<>> told_errors;

std::string_view level_text(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug: ";
    case LogLevel::kWarn: return "warning: ";
    case LogLevel::kError: return "error: ";
    default: return "";
  }
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (!(n < 0 && errno == EINTR)) {
      return;  // nobody to tell
    }
  }
}

std::string utc_now() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", text, ms);
}

// Under log_mutex. One write: lines of processes that share a file by mistake never mix.
void write_file(RankFile& file, int rank, LogLevel level, std::string_view text) {
  const std::string head = fmt::format("{} rank {}: ", utc_now(), rank);
  std::string lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.append(head).append(begin == 0 ? level_text(level) : "").append(text.substr(begin, end - begin)).push_back('\n');
    begin = end + 1;
  }
  if (file.fd >= 0) {
    write_all(file.fd, lines);
  } else {
    file.held += lines;
  }
}

}  // namespace

void set_log_level(LogLevel level) { current_level.store(level, std::memory_order_relaxed); }
LogLevel log_level() { return current_level.load(std::memory_order_relaxed); }

void write_log(LogLevel level, std::string_view text) {
  const int rank = this_rank();
  const std::lock_guard lock(log_mutex);
  const auto file = rank < 0 ? rank_files.begin() : rank_files.find(rank);
  const bool has_file = file != rank_files.end();
  if (has_file) write_file(file->second, file->first, level, text);
  if (rank > 0 && has_file && level < LogLevel::kWarn) return;
  write_all(STDERR_FILENO,
            fmt::format("weft: {}{}{}\n", rank > 0 ? fmt::format("rank {}: ", rank) : "", level_text(level), text));
}

void hold_rank_log(int rank) {
  const std::lock_guard lock(log_mutex);
  rank_files[rank];
}

void open_rank_log(const std::string& dir, int rank) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  const std::string path = fmt::format("{}/rank_{}.log", dir, rank);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) throw SystemError(fmt::format("cannot write '{}': {}", path, std::strerror(errno)));
  const std::lock_guard lock(log_mutex);
  RankFile& file = rank_files[rank];
  if (file.fd >= 0) ::close(file.fd);
  file.fd = fd;
  write_all(fd, std::exchange(file.held, {}));
}

void close_rank_logs() {
  const std::lock_guard lock(log_mutex);
  for (const auto& [rank, file] : rank_files)
    if (file.fd >= 0) ::close(file.fd);
  rank_files.clear();
  told_errors.clear();
}

void write_log_file(int rank, LogLevel level, std::string_view text) {
  const std::lock_guard lock(log_mutex);
  if (const auto file = rank_files.find(rank); file != rank_files.end()) write_file(file->second, rank, level, text);
}

void write_log_terminal(LogLevel level, std::string_view text) {
  const std::lock_guard lock(log_mutex);
  write_all(STDERR_FILENO, fmt::format("weft: {}{}\n", level_text(level), text));
}

void set_error_told(std::string text) {
  const std::lock_guard lock(log_mutex);
  told_errors.insert(std::move(text));
}

bool error_was_told(std::string_view text) {
  const std::lock_guard lock(log_mutex);
  return told_errors.count(text) > 0;
}

}  // namespace weft
