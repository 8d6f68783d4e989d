#include "weft/rl/dapo.h"

#include <cmath>
#include <map>

#include "weft/base/error.h"
#include "weft/rl/rows.h"

namespace weft {

double soft_overlong_punishment(int64_t length, int64_t max_length, int64_t buffer, double penalty_factor) {
  if (buffer <= 0 || buffer > max_length) {
    throw ValueError(
        fmt::format("overlong buffer is {} tokens; it must be between 1 and the maximum response length {}", buffer, max_length));
  }
  if (!(penalty_factor >= 0.0))
    throw ValueError(fmt::format("overlong penalty_factor is {}; it must be 0 or more", penalty_factor));
  const auto beyond = static_cast<double>(length - (max_length - buffer));
  return beyond <= 0.0 ? 0.0 : -beyond / static_cast<double>(buffer) * penalty_factor;
}

std::vector<uint8_t> keep_informative_groups(std::span<const double> metric, std::span<const int64_t> groups) {
  check_size("groups", groups.size(), static_cast<int64_t>(metric.size()));
  struct Seen {
    int64_t rows = 0;
    bool any = false;
    double first = 0;
    bool differs = false;
  };
  std::map<int64_t, Seen> seen;
  for (size_t i = 0; i < metric.size(); ++i) {
    Seen& group = seen[groups[i]];
    group.rows += 1;
    if (std::isnan(metric[i])) continue;
    if (group.any && metric[i] != group.first) group.differs = true;
    if (!group.any) group.first = metric[i];
    group.any = true;
  }
  std::vector<uint8_t> keep;
  for (int64_t id : groups) {
    const Seen& group = seen[id];
    keep.push_back(group.rows == 1 ? group.any : group.differs);
  }
  return keep;
}

DynamicSampling::DynamicSampling(int64_t wanted_groups, int64_t max_batches) : wanted_(wanted_groups), max_batches_(max_batches) {
  if (wanted_groups <= 0 || max_batches < 0) {
    throw ValueError(fmt::format("dynamic sampling: {} groups wanted must be above 0, bound of {} batches 0 or more",
                                 wanted_groups, max_batches));
  }
}

DynamicSampling::Next DynamicSampling::add(int64_t kept, int64_t generated) {
  WEFT_CHECK(kept >= 0 && kept <= generated, "kept {} of {} groups", kept, generated);
  kept_ += kept;
  generated_ += generated;
  batches_ += 1;
  if (kept_ >= wanted_) return Next::kEnough;
  return max_batches_ > 0 && batches_ >= max_batches_ ? Next::kBoundReached : Next::kGenerate;
}

}  // namespace weft
