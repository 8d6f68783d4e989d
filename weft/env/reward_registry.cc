#include "weft/env/reward_registry.h"

#include <fmt/ranges.h>

#include "weft/base/error.h"
#include "weft/env/builtin_rewards.h"

namespace weft {

RewardRegistry::RewardRegistry() {
  factories_ = {{"exact_match", make_exact_match}, {"contains", make_contains}, {"regex", make_regex},
                {"last_number", make_last_number}, {"format", make_format},     {"length", make_length}};
}

void RewardRegistry::add(const std::string& name, Factory factory) {
  if (name.empty() || name.find(':') != std::string::npos || !factories_.emplace(name, std::move(factory)).second)
    throw UsageError(fmt::format("a reward cannot be named '{}': {}", name,
                                 factories_.contains(name) ? "the name is taken" : "a name is not empty and holds no colon"));
}

std::vector<std::string> RewardRegistry::names() const {
  std::vector<std::string> result;
  for (const auto& [name, factory] : factories_) result.push_back(name);
  return result;
}

std::unique_ptr<RewardFunction> RewardRegistry::make(const std::string& spec, const RewardProcessOptions& options) const {
  const size_t colon = spec.find(':');
  const auto known = factories_.find(spec.substr(0, colon));
  if (known != factories_.end()) return known->second(colon == std::string::npos ? "" : spec.substr(colon + 1));
  // The function's name comes after the last colon: a path may hold one.
  const size_t last = spec.rfind(':');
  if (spec.ends_with(".py")) return make_python_reward(spec, "", options);
  if (last != std::string::npos && std::string_view(spec).substr(0, last).ends_with(".py"))
    return make_python_reward(spec.substr(0, last), spec.substr(last + 1), options);
  throw UsageError(fmt::format("reward.funcs: '{}' is no reward; there are {}, and FILE.py:FUNCTION for one of your own", spec,
                               fmt::join(names(), ", ")));
}

}  // namespace weft
