#include "weft/train/plan_format.h"

#include <fmt/format.h>

#include <iterator>

namespace weft {

std::string size_text(double bytes) {
  const char* units[] = {"B", "KB", "MB", "GB", "TB", "PB"};
  size_t u = 0;
  while (bytes >= 1000 && u + 1 < std::size(units)) bytes /= 1000, ++u;
  return u == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, units[u]);
}

std::string time_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.0f} us", seconds * 1e6);
}

std::string count_text(int64_t n) {
  const double x = static_cast<double>(n);
  if (x >= 1e12) return fmt::format("{:.3f} T", x / 1e12);
  if (x >= 1e9) return fmt::format("{:.2f} B", x / 1e9);
  if (x >= 1e6) return fmt::format("{:.2f} M", x / 1e6);
  return x >= 1e3 ? fmt::format("{:.1f} k", x / 1e3) : fmt::format("{}", n);
}

}  // namespace weft
