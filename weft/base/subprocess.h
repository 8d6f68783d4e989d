#pragma once
// A program started with pipes on its standard input, output and error, spoken to in lines. It gets its own process group
// (a Ctrl-C in the terminal does not reach it; killing it takes its children along) and default signal handling. Reading and
// writing serve all three pipes at once, so neither side can block the other, and a program that went away is a status, not
// SIGPIPE. Times are seconds; kNoTimeLimit waits for ever. One object serves one thread at a time; different objects are
// independent. Throws SystemError when the program cannot be started or a pipe fails.

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft {

inline constexpr double kNoTimeLimit = std::numeric_limits<double>::infinity();

struct SubprocessOptions {
  std::vector<std::string> argv;                                 // argv[0] is looked up in PATH when it holds no slash
  std::string working_directory;                                 // empty: ours
  std::vector<std::pair<std::string, std::string>> environment;  // added to ours, replacing names that it holds
  int64_t stderr_lines = 20;                                     // how many of the last lines stderr_tail() keeps
  int64_t max_line_bytes = int64_t{1} << 28;                     // a longer line of output is a SystemError
  std::function<void(std::string_view)> on_stderr_line;          // called while we read or write; may be empty
};

enum class PipeStatus { kDone, kTimeout, kClosed };

class Subprocess {
 public:
  explicit Subprocess(SubprocessOptions options);
  ~Subprocess();  // kills the group if it still runs
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  // Sends `line` and a line end. kClosed: the program no longer reads. After kTimeout a part may be sent: kill it.
  PipeStatus write_line(std::string_view line, double timeout_s);
  // The next line of standard output without its end; a last line without end counts. kClosed: the output ended.
  PipeStatus read_line(std::string* line, double timeout_s);
  // End of file on its standard input: most programs leave then.
  void close_input();

  // Waits until it has exited on its own, then ends what is left of its group. After `timeout_s` the whole group is killed.
  // True when it exited on its own. Idempotent.
  bool finish(double timeout_s);
  void kill() { finish(0); }
  // True until finish() (also a program that exited on its own is "started" until then).
  bool started() const { return pid_ > 0; }
  int64_t pid() const { return pid_; }

  // "exit code 3" or "signal 11 (Segmentation fault)" after finish(); "running" before.
  std::string exit_text() const;
  // Valid after finish(): the exit code, or 128 + the signal's number.
  int exit_code() const;
  // The last lines of standard error seen so far, oldest first, joined by line ends.
  std::string stderr_tail() const;

 private:
  void start();
  bool pump(double deadline);
  void send_some();
  void receive_some(int* fd, std::string* buffer);
  void split_stderr(bool at_end);

  SubprocessOptions options_;
  int64_t pid_ = 0;
  int wait_status_ = 0;
  bool finished_ = false;
  int stdin_ = -1, stdout_ = -1, stderr_ = -1;
  std::string outgoing_;      // line being written
  size_t sent_ = 0;           // bytes of outgoing_ that are written
  std::string incoming_;      // standard output not yet taken
  size_t scanned_ = 0;        // bytes of incoming_ known to hold no line end
  std::string error_buffer_;  // standard error, an unfinished line
  std::deque<std::string> error_lines_;
};

}  // namespace weft
