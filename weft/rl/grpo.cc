#include "weft/rl/grpo.h"

#include <cmath>
#include <functional>
#include <map>

#include "weft/rl/rows.h"

namespace weft {
namespace {

struct Group {
  std::vector<int64_t> rows;  // with a valid reward, in row order
  bool all_equal = true;
};

std::map<int64_t, Group> collect(std::span<const double> rewards, std::span<const int64_t> groups) {
  check_size("groups", groups.size(), static_cast<int64_t>(rewards.size()));
  std::map<int64_t, Group> out;
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (std::isnan(rewards[i])) continue;
    Group& group = out[groups[i]];
    if (!group.rows.empty() && rewards[group.rows[0]] != rewards[i]) group.all_equal = false;
    group.rows.push_back(static_cast<int64_t>(i));
  }
  return out;
}

double mean_of(const std::vector<int64_t>& rows, std::span<const double> rewards) {
  double sum = 0;
  for (int64_t i : rows) sum += rewards[i];
  return sum / static_cast<double>(rows.size());
}

// Applies `one` to every group that has a signal (two different rewards); the rest stays 0.
std::vector<double> per_group(std::span<const double> rewards, std::span<const int64_t> groups,
                              const std::function<void(const std::vector<int64_t>&, std::vector<double>&)>& one) {
  std::vector<double> out(rewards.size(), 0.0);
  for (const auto& [id, group] : collect(rewards, groups)) {
    if (!group.all_equal) one(group.rows, out);
  }
  return out;
}

}  // namespace

std::vector<double> grpo_advantages(std::span<const double> rewards, std::span<const int64_t> groups, bool norm_by_std,
                                    double eps) {
  return per_group(rewards, groups, [&](const std::vector<int64_t>& rows, std::vector<double>& out) {
    const double mean = mean_of(rows, rewards);
    double squares = 0;
    for (int64_t i : rows) squares += (rewards[i] - mean) * (rewards[i] - mean);
    const double scale = norm_by_std ? std::sqrt(squares / static_cast<double>(rows.size() - 1)) + eps : 1.0;
    for (int64_t i : rows) out[i] = (rewards[i] - mean) / scale;
  });
}

std::vector<double> rloo_advantages(std::span<const double> rewards, std::span<const int64_t> groups) {
  return per_group(rewards, groups, [&](const std::vector<int64_t>& rows, std::vector<double>& out) {
    const double mean = mean_of(rows, rewards);
    const auto n = static_cast<double>(rows.size());
    for (int64_t i : rows) out[i] = n / (n - 1.0) * (rewards[i] - mean);
  });
}

std::vector<double> opo_advantages(std::span<const double> rewards, std::span<const int64_t> groups,
                                   std::span<const double> lengths) {
  check_size("lengths", lengths.size(), static_cast<int64_t>(rewards.size()));
  return per_group(rewards, groups, [&](const std::vector<int64_t>& rows, std::vector<double>& out) {
    double weighted = 0;
    double length = 0;
    for (int64_t i : rows) {
      weighted += lengths[i] * rewards[i];
      length += lengths[i];
    }
    if (length == 0.0) return;  // no token to teach
    for (int64_t i : rows) out[i] = rewards[i] - weighted / length;
  });
}

std::vector<double> gpg_advantages(std::span<const double> rewards, std::span<const int64_t> groups) {
  double valid = 0;
  double nonzero = 0;
  for (double r : rewards) {
    valid += !std::isnan(r);
    nonzero += !std::isnan(r) && r != 0.0;
  }
  const double alpha = nonzero > 0 ? valid / nonzero : 1.0;
  return per_group(rewards, groups, [&](const std::vector<int64_t>& rows, std::vector<double>& out) {
    const double mean = mean_of(rows, rewards);
    for (int64_t i : rows) out[i] = alpha * (rewards[i] - mean);
  });
}

std::vector<double> group_centred(std::span<const double> rewards, std::span<const int64_t> groups) {
  std::vector<double> out(rewards.size(), 0.0);
  for (const auto& [id, group] : collect(rewards, groups)) {
    const double mean = group.rows.size() == 1 ? 0.0 : group.all_equal ? rewards[group.rows[0]] : mean_of(group.rows, rewards);
    for (int64_t i : group.rows) out[i] = rewards[i] - mean;
  }
  return out;
}

double fraction_zero_std(std::span<const double> rewards, std::span<const int64_t> groups) {
  double all = 0;
  double equal = 0;
  for (const auto& [id, group] : collect(rewards, groups)) {
    if (group.rows.size() < 2) continue;
    all += 1;
    equal += group.all_equal;
  }
  return all > 0 ? equal / all : 0.0;
}

}  // namespace weft
