#include "weft/base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "weft/base/log.h"
#include "weft/base/this_rank.h"

namespace weft {

std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e12) return "?";
  if (seconds < 9.995) return fmt::format("{:.2f}s", seconds);
  if (seconds < 59.95) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
  return fmt::format("{}d {:02}h", whole / 86400, whole / 3600 % 24);
}

std::string format_quantity(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  constexpr struct {
    double size;
    const char* suffix;
  } kScales[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& scale : kScales)
    if (std::fabs(value) >= scale.size) return fmt::format("{:.3g}{}", value / scale.size, scale.suffix);
  return fmt::format("{:.3g}", value);
}

Progress::Progress(std::string label, int64_t total, std::string unit, ProgressOptions options)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      start_(options.start),
      done_(options.start),
      fd_(options.fd),
      terminal_(options.terminal.value_or(isatty(options.fd) == 1)),
      interval_(terminal_ ? 0.1 : options.plain_interval),
      clock_(options.clock ? options.clock : &real_clock()) {
  began_ = last_draw_ = clock_->now();
}

Progress::~Progress() { finish(); }

double Progress::rate() const {
  const double seconds = clock_->now() - began_;
  return seconds > 0 && done_ > start_ ? static_cast<double>(done_ - start_) / seconds : 0;
}

std::optional<double> Progress::seconds_left() const {
  const double speed = rate();
  if (total_ <= 0 || speed <= 0) return std::nullopt;
  return static_cast<double>(total_ > done_ ? total_ - done_ : 0) / speed;
}

std::string Progress::text() const {
  std::string out = label_;
  out += total_ > 0 ? fmt::format(" {}/{} {}", done_, total_, unit_) : fmt::format(" {} {}", done_, unit_);
  if (const double speed = rate(); speed > 0) {
    // Slow work reads better as time per unit.
    const std::string one = unit_.ends_with('s') ? unit_.substr(0, unit_.size() - 1) : unit_;
    out += speed < 1 ? fmt::format("  {}/{}", format_duration(1 / speed), one)
                     : fmt::format("  {} {}/s", format_quantity(speed), unit_);
    if (const auto left = seconds_left(); left && done_ < total_) out += fmt::format("  {} left", format_duration(*left));
  }
  if (!note_.empty()) out += "  " + note_;
  return out;
}

void Progress::write_out(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t n = ::write(fd_, text.data(), text.size());
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

void Progress::draw(bool last) {
  const std::string line = text();
  if (terminal_) {
    // Spaces cover what a longer line left behind.
    const std::string padding(width_ > line.size() ? width_ - line.size() : 0, ' ');
    write_out("\r" + line + padding + (last ? "\n" : ""));
    width_ = last ? 0 : line.size();
  } else {
    write_out(line + "\n");
  }
  drawn_ = true;
  drawn_done_ = done_;
  last_draw_ = clock_->now();
}

void Progress::update(int64_t done, std::string_view note) {
  if (finished_) return;
  done_ = done;
  note_ = note;
  if ((drawn_ || !terminal_) && clock_->now() - last_draw_ < interval_) return;
  draw(false);
}

void Progress::print(std::string_view line) {
  if (terminal_ && width_ > 0) write_out("\r" + std::string(width_, ' ') + "\r");
  write_out(std::string(line) + "\n");
  write_log_file(std::max(this_rank(), 0), LogLevel::kInfo, line);
  width_ = 0;
  if (terminal_ && drawn_ && !finished_) draw(false);
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  if (terminal_ ? drawn_ : done_ != drawn_done_ && done_ > start_) draw(true);
}

}  // namespace weft
