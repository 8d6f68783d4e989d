#pragma once
// From the strings of reward.funcs to reward functions: "last_number", "regex:PATTERN", "my_reward.py:fn". A program's own
// C++ rewards are added under a name and then work like the built-in ones.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/env/process_reward.h"
#include "weft/env/reward.h"

namespace weft {

class RewardRegistry {
 public:
  // Makes a reward from the text behind the colon of its spec ("" when there is none).
  using Factory = std::function<std::unique_ptr<RewardFunction>(const std::string& params)>;

  RewardRegistry();  // with the built-in rewards

  // Throws UsageError when the name is taken or holds a colon.
  void add(const std::string& name, Factory factory);
  std::vector<std::string> names() const;

  // Throws UsageError for a spec that names nothing, and what the reward's own maker throws.
  std::unique_ptr<RewardFunction> make(const std::string& spec, const RewardProcessOptions& options) const;

 private:
  std::map<std::string, Factory> factories_;
};

}  // namespace weft
