#pragma once
// Messages to the user on standard error: "weft: text", "weft: warning: text", "weft: error: text". One write per message, so
// lines of several threads or processes never mix. Messages below the set level are not formatted. Never throws for a
// standard error that is closed or full. Safe to call from any thread; not from a signal handler.

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace weft {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3, kQuiet = 4 };

// The lowest level that is written; kInfo at start.
void set_log_level(LogLevel level);
LogLevel log_level();

// Writes one message (a line end is added) without looking at the level.
void write_log(LogLevel level, std::string_view text);

template <typename... Args>
void log_at(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level >= log_level()) write_log(level, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kDebug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kWarn, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kError, format, std::forward<Args>(args)...);
}

}  // namespace weft
