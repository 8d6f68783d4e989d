#include "weft/base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <string>

namespace weft {
namespace {

std::atomic<LogLevel> current_level{LogLevel::kInfo};

std::string_view prefix(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "weft: debug: ";
    case LogLevel::kWarn: return "weft: warning: ";
    case LogLevel::kError: return "weft: error: ";
    default: return "weft: ";
  }
}

}  // namespace

void set_log_level(LogLevel level) { current_level.store(level, std::memory_order_relaxed); }
LogLevel log_level() { return current_level.load(std::memory_order_relaxed); }

void write_log(LogLevel level, std::string_view text) {
  std::string line;
  const std::string_view head = prefix(level);
  line.reserve(head.size() + text.size() + 1);
  line.append(head).append(text).push_back('\n');
  // The lock keeps a line whole when the system takes only a part of it at once (a pipe, more than PIPE_BUF bytes).
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (!(n < 0 && errno == EINTR)) {
      return;  // nobody to tell
    }
  }
}

}  // namespace weft
