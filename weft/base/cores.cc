#include "weft/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <thread>

#include "weft/base/cgroup.h"
#include "weft/base/random.h"

namespace weft {
namespace {

int rounded_up(double cores) { return std::max(1, static_cast<int>(std::ceil(cores - 0.001))); }

// Cores that one cgroup allows; 0: any number.
int quota_v2(const std::string& dir) {
  std::istringstream text(text_of_file(dir + "/cpu.max"));
  double quota = 0, period = 0;  // "max 100000" leaves both 0
  return text >> quota >> period && quota > 0 && period > 0 ? rounded_up(quota / period) : 0;
}
int quota_v1(const std::string& dir) {
  std::istringstream quota_text(text_of_file(dir + "/cpu.cfs_quota_us")), period_text(text_of_file(dir + "/cpu.cfs_period_us"));
  double quota = 0, period = 0;  // a quota of -1: none
  return quota_text >> quota && period_text >> period && quota > 0 && period > 0 ? rounded_up(quota / period) : 0;
}

}  // namespace

int cgroup_quota(const std::string& proc_cgroup, const std::string& root) {
  int least = 0;  // each group can only take away
  for (const bool v2 : {true, false})
    for (const std::string& dir : cgroup_directories(proc_cgroup, root, "cpu", v2))
      if (const int cores = v2 ? quota_v2(dir) : quota_v1(dir); cores > 0) least = least == 0 ? cores : std::min(least, cores);
  return least;
}

CoreLimits core_limits() {
  CoreLimits limits;
  cpu_set_t set;
  CPU_ZERO(&set);
  limits.mask = static_cast<int>(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    limits.mask = CPU_COUNT(&set);
    limits.mask_hash = 1;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) limits.mask_hash = hash_combine(limits.mask_hash, static_cast<uint64_t>(cpu));
  }
  limits.mask = std::max(limits.mask, 1);
  limits.quota = cgroup_quota(text_of_file("/proc/self/cgroup"), "/sys/fs/cgroup");
  return limits;
}

int available_cores() { return cores_of_rank(core_limits(), 1, 1); }

int cores_of_rank(const CoreLimits& limits, int same_mask, int here) {
  int cores = limits.mask / std::max(same_mask, 1);
  if (limits.quota > 0) cores = std::min(cores, limits.quota / std::max(here, 1));
  return std::max(cores, 1);
}

}  // namespace weft
