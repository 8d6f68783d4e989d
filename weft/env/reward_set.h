#pragma once
// Several rewards with weights as one: the sum of weight * value over those that apply to a completion. Deterministic if the
// functions are: the sum is taken in their order, in double.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/env/reward.h"

namespace weft {

// What a reward that is NaN or infinite does (reward.on_nan): ends the run, or leaves the completion out.
enum class OnNan { kStop, kDrop };

struct CombinedReward {
  double value = 0;
  bool valid = true;               // false: out of statistics and denominators
  std::string reason;              // why not valid
  std::vector<RewardValue> parts;  // one per function, unweighted; one that was not finite is not applicable
};

class RewardSet {
 public:
  struct Entry {
    std::unique_ptr<RewardFunction> function;
    double weight = 1;
  };
  // Throws UsageError for an empty set and for weights that are not finite.
  RewardSet(std::vector<Entry> entries, OnNan on_nan);

  // One result per request, in order. A completion to which no function applies is not valid. Throws ValueError naming the
  // function and the row: for a value (or extra figure, or sum) that is not finite under kStop, and for a function that
  // answers with a wrong number of values.
  std::vector<CombinedReward> score(std::span<const RewardRequest> requests);

  // For metrics, one per function, all different: a name that comes again gets "_2", "_3".
  const std::vector<std::string>& names() const { return names_; }
  double weight(size_t index) const { return entries_.at(index).weight; }
  size_t size() const { return entries_.size(); }

 private:
  std::vector<Entry> entries_;
  std::vector<std::string> names_;
  OnNan on_nan_;
};

}  // namespace weft
