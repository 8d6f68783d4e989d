#pragma once
// Messages to the user on standard error: "weft: text", "weft: warning: text", "weft: error: text". One write per message, so
// lines of several threads or processes never mix. Messages below the set level are not formatted. Never throws for a
// standard error or a file that is closed or full. Safe to call from any thread; not from a signal handler.
//
// In a job of several ranks each rank also has a file (open_rank_log), to which each line goes with its time and rank. Rank 0's
// go to the terminal as well; of the others only warnings and errors, as "weft: rank 3: warning: text", or everything where they
// have no file.

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace weft {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3, kQuiet = 4 };

// The lowest level that is written; kInfo at start.
void set_log_level(LogLevel level);
LogLevel log_level();

// Writes one message (a line end is added) of the calling thread's rank, without looking at the level.
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

// From now on the rank's lines are kept for its file, which open_rank_log writes: a run that does not begin leaves none.
void hold_rank_log(int rank);
// Opens DIR/rank_<rank>.log for appending, with its directories: "2026-11-30T09:07:27.123Z rank 1: warning: text", in UTC. Lines
// of threads that belong to no rank go to the lowest one's. Throws SystemError. A rank that has one gets the new one.
void open_rank_log(const std::string& dir, int rank);
// Closes them, and forgets what set_error_told was given.
void close_rank_logs();

// To one of the two only: what a progress line has shown already, what another process of the host says.
void write_log_file(int rank, LogLevel level, std::string_view text);
void write_log_terminal(LogLevel level, std::string_view text);

// The error with this text has been told, so that the program's end does not tell it again.
void set_error_told(std::string text);
bool error_was_told(std::string_view text);

}  // namespace weft
