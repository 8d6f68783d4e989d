#include "weft/base/memory.h"

#include <algorithm>
#include <sstream>

#include "weft/base/cgroup.h"

namespace weft {

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
