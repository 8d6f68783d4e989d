#include "weft/base/cgroup.h"

#include <fstream>
#include <iterator>
#include <sstream>

namespace weft {

std::vector<std::string> cgroup_directories(const std::string& proc_cgroup, const std::string& root,
                                            const std::string& controller, bool v2) {
  std::vector<std::string> out;
  const auto up_from = [&](const std::string& mount, std::string path) {
    for (;;) {
      out.push_back(mount + path);
      if (path.empty() || path == "/") return;
      path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
    }
  };
  std::istringstream lines(proc_cgroup);
  for (std::string line; std::getline(lines, line);) {  // "0::/user.slice" or "4:cpu,cpuacct:/docker/1f"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty() && v2) {
      up_from(root, path);
      up_from(root + "/unified", path);
    } else if (!v2 && ("," + controllers + ",").find("," + controller + ",") != std::string::npos) {
      up_from(root + "/" + controllers, path);
      if (controllers != controller) up_from(root + "/" + controller, path);
    }
  }
  return out;
}

std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace weft
