#pragma once
// Names a group so that all members find the same name without talking: its world ranks, its axis, and how many of that kind the
// member has made before.

#include <map>
#include <string>
#include <vector>

#include "weft/comm/operation.h"

namespace weft {

// `made` counts the groups of one rank.
std::string next_group_key(std::map<std::string, int>* made, const std::vector<int>& ranks, const std::string& axis);
void fill_group(Group* group, const std::string& key, const std::vector<int>& ranks, const std::string& axis, int world_rank);

}  // namespace weft
