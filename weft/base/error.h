#pragma once
// Two kinds of error. What the caller or the machine did is a typed Error: its message says what, where, which value
// and what to do. What we did wrong is a failed WEFT_CHECK (InternalError). Exit codes: docs/errors.md.

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace weft {

// Exit codes of the program.
enum ExitCode : int {
  kExitDone = 0,
  kExitFailed = 1,
  kExitUsage = 2,     // bad command or recipe
  kExitStopped = 75,  // stopped by a signal after a checkpoint: requeue
  kExitPeerLost = 76,
};

// Base of everything that the caller or the machine caused. Carries the exit code that a role's top level returns.
class Error : public std::runtime_error {
 public:
  explicit Error(std::string message, ExitCode exit_code = kExitFailed)
      : std::runtime_error(std::move(message)), exit_code_(exit_code) {}
  ExitCode exit_code() const { return exit_code_; }

 private:
  ExitCode exit_code_;
};

// A wrong command line or recipe.
class UsageError : public Error {
 public:
  explicit UsageError(std::string message) : Error(std::move(message), kExitUsage) {}
};

// A file (or a record in it) that is missing, malformed or does not fit. `where` may be a line, a byte offset, a tensor name.
class FileError : public Error {
 public:
  FileError(const std::string& path, const std::string& where, const std::string& what)
      : Error(where.empty() ? path + ": " + what : path + ": " + where + ": " + what) {}
};

// A value that a caller passed (a request, a row, a tensor shape) and that cannot be served.
class ValueError : public Error {
 public:
  explicit ValueError(std::string message) : Error(std::move(message)) {}
};

// The machine refused: disk full, no memory, a program that cannot be started.
class SystemError : public Error {
 public:
  explicit SystemError(std::string message) : Error(std::move(message)) {}
};

// The run was stopped by a signal and everything needed to go on was saved.
class StoppedError : public Error {
 public:
  explicit StoppedError(std::string message) : Error(std::move(message), kExitStopped) {}
};

// A bug of ours.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace weft

// Our own invariants: WEFT_CHECK(a == b, "rows {} of {}", a, b). Never for input from outside.
#define WEFT_CHECK(condition, ...)                                                          \
  do {                                                                                      \
    if (!(condition)) ::weft::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (0)
