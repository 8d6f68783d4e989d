#pragma once
// How much memory a process may still take.

#include <cstdint>
#include <optional>
#include <string>

namespace weft {

// Bytes: what the machine has available, and no more than the process's cgroups leave. At least 0.
int64_t available_memory();

// Bytes of "12GB", "800 MB", "1.5GiB", "4096B": powers of 1000, of 1024 with an i; nullopt for anything else, and what does not fit.
std::optional<int64_t> parse_bytes(const std::string& text);

// MemAvailable of the text of /proc/meminfo; -1 where it does not say.
int64_t meminfo_available(const std::string& proc_meminfo);
// What the cgroups leave: the least of limit - use of the process's and those above it, memory.max and memory.current (version 2)
// or memory.limit_in_bytes and memory.usage_in_bytes (version 1); -1: no limit. Arguments as cgroup_directories (cgroup.h).
int64_t cgroup_memory(const std::string& proc_cgroup, const std::string& root);

}  // namespace weft
