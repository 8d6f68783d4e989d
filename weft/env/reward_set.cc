#include "weft/env/reward_set.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr const char* kDropHint = "correct the function, or set reward.on_nan = \"drop\" to leave such completions out";

}  // namespace

RewardSet::RewardSet(std::vector<Entry> entries, OnNan on_nan) : entries_(std::move(entries)), on_nan_(on_nan) {
  if (entries_.empty()) throw UsageError("reward.funcs names no reward function");
  for (const auto& entry : entries_) {
    const std::string base = entry.function->name();
    if (!std::isfinite(entry.weight))
      throw UsageError(fmt::format("reward.weights: the weight of '{}' is {}; it must be finite", base, entry.weight));
    std::string name = base;
    for (int copy = 2; std::find(names_.begin(), names_.end(), name) != names_.end(); ++copy)
      name = fmt::format("{}_{}", base, copy);
    names_.push_back(name);
  }
}

std::vector<CombinedReward> RewardSet::score(std::span<const RewardRequest> requests) {
  std::vector<CombinedReward> combined(requests.size());
  std::vector<bool> any(requests.size(), false);
  if (requests.empty()) return combined;
  for (size_t f = 0; f < entries_.size(); ++f) {
    std::vector<RewardValue> values = entries_[f].function->score(requests);
    if (values.size() != requests.size())
      throw ValueError(fmt::format("reward '{}' gave {} values for {} completions (first {})", names_[f], values.size(),
                                   requests.size(), where(requests[0])));
    for (size_t i = 0; i < requests.size(); ++i) {
      CombinedReward& result = combined[i];
      RewardValue value = std::move(values[i]);
      const auto not_finite = [&](const std::string& what, double number) {
        const std::string text = fmt::format("reward '{}' gave {}{}", names_[f], what, number);
        if (on_nan_ == OnNan::kStop) throw ValueError(fmt::format("{}: {}; {}", where(requests[i]), text, kDropHint));
        if (result.valid) result.reason = text;
        result.valid = false;
      };
      if (value.applicable && !std::isfinite(value.value)) {
        not_finite("", value.value);
        value.applicable = false;
        value.value = 0;
      }
      for (auto extra = value.extra.begin(); extra != value.extra.end();) {
        if (!std::isfinite(extra->second)) not_finite(extra->first + " = ", extra->second);
        extra = std::isfinite(extra->second) ? std::next(extra) : value.extra.erase(extra);
      }
      if (value.applicable) {
        any[i] = true;
        result.value += entries_[f].weight * value.value;
      }
      result.parts.push_back(std::move(value));
    }
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    CombinedReward& result = combined[i];
    if (result.valid && !any[i]) {
      result.valid = false;
      result.reason = "no reward applies";
    }
    if (result.valid && !std::isfinite(result.value)) {
      const std::string text = fmt::format("the weighted sum of the rewards is {}", result.value);
      if (on_nan_ == OnNan::kStop) throw ValueError(fmt::format("{}: {}; {}", where(requests[i]), text, kDropHint));
      result.valid = false;
      result.reason = text;
    }
    if (!result.valid) result.value = 0;
  }
  return combined;
}

}  // namespace weft
