#include "weft/base/memory.h"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "weft/base/cgroup.h"

namespace weft {

std::optional<int64_t> parse_bytes(const std::string& text) {
  std::istringstream in(text);
  double value = 0;
  std::string unit, more;
  if (!(in >> value) || !(value >= 0) || text[0] == '-' || text[0] == '+') return std::nullopt;
  in >> unit;
  if (in >> more) return std::nullopt;
  double factor = 1;
  if (unit.empty()) return std::nullopt;
  if (unit != "B") {
    static constexpr std::string_view kPrefixes = "kMGT";
    const size_t power = kPrefixes.find(unit[0] == 'K' ? 'k' : unit[0]);
    const bool binary = unit.size() == 3 && unit[1] == 'i';
    if (power == std::string_view::npos || unit.back() != 'B' || (unit.size() != 2 && !binary)) return std::nullopt;
    for (size_t i = 0; i <= power; ++i) factor *= binary ? 1024 : 1000;
  }
  return value * factor < 9e18 ? std::optional(static_cast<int64_t>(value * factor)) : std::nullopt;
}

int64_t meminfo_available(const std::string& proc_meminfo) {
  std::istringstream lines(proc_meminfo);
  std::string name, unit;
  for (int64_t value = 0; lines >> name >> value; lines.ignore(INT32_MAX, '\n'))
    if (name == "MemAvailable:") return value * 1024;
  return -1;
}

int64_t cgroup_memory(const std::string& proc_cgroup, const std::string& root) {
  int64_t least = -1;
  for (const bool v2 : {true, false})
    for (const std::string& dir : cgroup_directories(proc_cgroup, root, "memory", v2)) {
      std::istringstream limit_text(text_of_file(dir + (v2 ? "/memory.max" : "/memory.limit_in_bytes"))),
          use_text(text_of_file(dir + (v2 ? "/memory.current" : "/memory.usage_in_bytes")));
      int64_t limit = 0, use = 0;  // "max": no number
      if (!(limit_text >> limit) || !(use_text >> use)) continue;
      const int64_t left = std::max<int64_t>(0, limit - use);
      least = least < 0 ? left : std::min(least, left);
    }
  return least;
}

int64_t available_memory() {
  const int64_t machine = meminfo_available(text_of_file("/proc/meminfo")),
                group = cgroup_memory(text_of_file("/proc/self/cgroup"), "/sys/fs/cgroup");
  const int64_t known = machine < 0 ? INT64_MAX : machine;
  return group < 0 ? known : std::min(known, group);
}

}  // namespace weft
