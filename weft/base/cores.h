#pragma once
// How many cores a process may use, and a rank of several on a host: from the CPU mask and the cgroup's quota. Functions of their
// arguments, but for available_cores, so that tests need no machine of a special kind.

#include <cstdint>
#include <string>

namespace weft {

struct CoreLimits {
  int mask = 1;            // cores in the CPU mask of the calling thread
  int quota = 0;           // cores of the cgroup's quota, rounded up; 0: none
  uint64_t mask_hash = 0;  // equal where masks are: ranks that have a mask each do not share its cores
};
CoreLimits core_limits();

// The mask, cut by the quota, at least 1. (libtorch guesses half.)
int available_cores();

// The quota that holds for a process: the least of its cgroup and those above it, cpu.max (version 2) or cpu.cfs_quota_us
// (version 1). `proc_cgroup`: the text of /proc/self/cgroup; `root`: where cgroups are mounted. 0: none.
int cgroup_quota(const std::string& proc_cgroup, const std::string& root);

// Cores of one of `here` ranks of a host, of which `same_mask` have its CPU mask. A launcher that gives each rank a mask of its
// own has divided already; a quota is that of all ranks here. At least 1.
int cores_of_rank(const CoreLimits& limits, int same_mask, int here);

}  // namespace weft
