#pragma once
// Progress of long work with rate and time left. In a terminal one line that is redrawn in place (at most 10 times a second);
// elsewhere plain lines, at most one each plain_interval seconds, and the last. Output that cannot be written is dropped, never
// an error. Not thread-safe: one thread updates.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weft/base/clock.h"

namespace weft {

struct ProgressOptions {
  int fd = 2;
  std::optional<bool> terminal;  // default: whether fd is one
  double plain_interval = 10.0;  // [s]; 0: every update
  int64_t start = 0;             // work done before this process (a resumed run); not counted in the rate
  Clock* clock = nullptr;        // default: real_clock()
};

class Progress {
 public:
  // `total` <= 0: unknown; then no share and no time left.
  Progress(std::string label, int64_t total, std::string unit, ProgressOptions options = {});
  ~Progress();  // ends the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t done, std::string_view note = "");
  // Writes a whole line above the progress line.
  void print(std::string_view line);
  // Draws the last state and ends the line. Later calls do nothing.
  void finish();

  double rate() const;                         // units/s since the start; 0 before the first update
  std::optional<double> seconds_left() const;  // unknown without total or rate

 private:
  std::string text() const;
  void draw(bool last);
  void write_out(std::string_view text) const;

  std::string label_, unit_, note_;
  int64_t total_, start_, done_;
  int fd_;
  bool terminal_, finished_ = false, drawn_ = false;
  double interval_, began_, last_draw_;
  size_t width_ = 0;
  int64_t drawn_done_ = -1;
  Clock* clock_;
};

// "0.42s", "12.3s", "3m 05s", "2h 07m", "3d 04h".
std::string format_duration(double seconds);
// Three significant digits: "0.0123", "45.1", "1.23k", "4.56M".
std::string format_quantity(double value);

}  // namespace weft
