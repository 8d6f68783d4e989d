#include "weft/train/sleep_plan.h"

#include <algorithm>
#include <numeric>

#include "weft/base/error.h"

namespace weft {
namespace {

double in_mb(int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

}  // namespace

const char* phase_name(Phase phase) {
  static constexpr const char* kNames[] = {"generate",     "reward",        "log_prob", "reference", "values",
                                           "update_actor", "update_critic", "refit",    "save",      "save_critic"};
  return kNames[static_cast<size_t>(phase)];
}

bool SleepPlan::sleeps() const {
  return std::any_of(asleep.begin(), asleep.end(),
                     [](const auto& p) { return std::find(p.second.begin(), p.second.end(), true) != p.second.end(); });
}

SleepPlan plan_sleep(std::span<const MemoryNeed> kinds, std::span<const Phase> phases, int64_t limit) {
  std::vector<size_t> order(kinds.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto largest = [&](size_t i) {
    return kinds[i].bytes.empty() ? 0 : *std::max_element(kinds[i].bytes.begin(), kinds[i].bytes.end());
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return kinds[a].discard != kinds[b].discard ? kinds[a].discard : largest(a) > largest(b);
  });
  SleepPlan plan;
  std::string refused;
  int64_t most_needed = limit;
  for (const Phase phase : phases) {
    std::vector<bool>& asleep = plan.asleep.emplace(phase, std::vector<bool>(kinds.size(), false)).first->second;
    std::vector<int64_t> awake;  // by process
    for (const MemoryNeed& k : kinds) {
      awake.resize(std::max(awake.size(), k.bytes.size()), 0);
      for (size_t p = 0; p < k.bytes.size(); ++p) awake[p] += k.bytes[p];
    }
    const auto most = [&] { return awake.empty() ? awake.end() : std::max_element(awake.begin(), awake.end()); };
    const auto peak = [&] { return awake.empty() ? 0 : *most(); };
    for (size_t i : order) {
      if (limit <= 0 || peak() <= limit) break;
      if (kinds[i].phases.contains(phase) || largest(i) == 0) continue;
      asleep[i] = true;
      for (size_t p = 0; p < kinds[i].bytes.size(); ++p) awake[p] -= kinds[i].bytes[p];
    }
    plan.peak[phase] = peak();
    if (limit <= 0 || peak() <= most_needed) continue;
    most_needed = peak();
    std::vector<std::string> needs;
    bool cache = false;
    const size_t process = static_cast<size_t>(most() - awake.begin());
    for (const MemoryNeed& k : kinds)
      if (k.phases.contains(phase) && process < k.bytes.size() && k.bytes[process] > 0) {
        needs.push_back(fmt::format("{} {:.1f}", k.name, in_mb(k.bytes[process])));
        cache = cache || k.name.ends_with(".kv_cache");
      }
    refused = fmt::format(
        "memory.limit = {:.3g} MB: the phase {} needs {:.1f} MB in one process ({}), more than any other. Raise it{} use more processes",
        in_mb(limit), phase_name(phase), in_mb(peak()), fmt::join(needs, ", "), cache ? ", lower rollout.kv_cache_tokens, or" : " or");
  }
  if (!refused.empty()) throw UsageError(refused);
  return plan;
}

}  // namespace weft
