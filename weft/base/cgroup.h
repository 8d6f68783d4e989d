#pragma once
// The cgroups that a process lies in, as directories to read limits from.

#include <string>
#include <vector>

namespace weft {

// The directories of a controller ("cpu", "memory"), the process's own first, then those above it: limits of each hold.
// `proc_cgroup`: the text of /proc/self/cgroup; `root`: where cgroups are mounted. Some may not exist. `v2`: of version 2, where
// the files of all controllers lie in one directory; else of version 1.
std::vector<std::string> cgroup_directories(const std::string& proc_cgroup, const std::string& root,
                                            const std::string& controller, bool v2);

// A file's text, empty where it cannot be read.
std::string text_of_file(const std::string& path);

}  // namespace weft
