#include "weft/train/step_metrics.h"
#include "weft/train/critic.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace weft {

void add_sample_metrics(const std::vector<ScoredSample>& samples, const RewardSet& rewards, const Recipe& recipe,
                        MetricsRow& row) {
  double n = 0, sum = 0, squares = 0, length = 0, longest = 0, truncated = 0;
  std::map<std::string, std::pair<double, double>> parts;  // sum, count
  for (const ScoredSample& s : samples) {
    const Trajectory& t = s.trajectory;
    const double tokens = static_cast<double>(t.response_ids.size());
    length += tokens;
    longest = std::max(longest, tokens);
    truncated += t.finish_reason == "length";
    if (!t.reward_valid) continue;
    n += 1, sum += t.reward, squares += t.reward * t.reward;
    for (const auto& [name, value] : t.rewards) parts[name].first += value, parts[name].second += 1;
  }
  const double count = std::max<double>(1, static_cast<double>(samples.size())), mean = n > 0 ? sum / n : 0.0;
  // Where no response has a reward there is no mean: not 0.
  if (n > 0) row.set("reward/mean", mean);
  if (n > 0) row.set("reward/std", n > 1 ? std::sqrt(std::max(0.0, (squares - n * mean * mean) / (n - 1))) : 0.0);
  row.set("reward/valid_share", n / count);
  std::vector<std::string> names = rewards.names();
  names.push_back(kModelReward);
  for (const std::string& name : names) {
    const auto it = parts.find(name);
    if (it != parts.end()) row.set("reward/" + name + "/mean", it->second.first / it->second.second);
  }
  row.set("response_length/mean", length / count);
  row.set("response_length/max", longest);
  row.set("response_length/clip_ratio", truncated / count);
  row.set("data/prompts", static_cast<double>(samples.size()) / static_cast<double>(recipe.rollout.n));
}

void add_gap_metrics(const std::string& prefix, const LogProbGap& gap, MetricsRow& row) {
  row.set(prefix + "kl", gap.kl());
  row.set(prefix + "k3_kl", gap.k3());
  row.set(prefix + "mean_abs", gap.mean_absolute());
  row.set(prefix + "max_abs", gap.max_absolute);
  row.set(prefix + "ratio_above_2", gap.ratio_above_2_share());
  row.set(prefix + "chi2_token", gap.chi2_token());
  row.set(prefix + "chi2_seq", gap.chi2_sequence());
  row.set(prefix + "ess", gap.effective_sample_size());
}

void add_expert_load(const std::vector<ScoredSample>& samples, const Job& job, const ModelConfig& config, MetricsRow& row) {
  if (!config.has_moe()) return;
  const std::vector<int32_t> layers = config.moe_layer_ids();
  const size_t experts = static_cast<size_t>(config.moe.num_experts);
  std::vector<double> counts(layers.size() * experts + 1, 0.0);  // [layer][expert], and the rows
  std::vector<int32_t> ids(static_cast<size_t>(config.moe.top_k));
  for (const ScoredSample& s : samples) {
    if (!s.counts_here || !s.trajectory.routing) continue;
    const RoutingTrace& trace = *s.trajectory.routing;
    counts.back() += static_cast<double>(trace.num_rows());
    for (int64_t r = 0; r < trace.num_rows(); ++r)
      for (size_t l = 0; l < layers.size(); ++l) {
        trace.get(r, static_cast<int64_t>(l), ids);
        for (int32_t id : ids) counts[l * experts + static_cast<size_t>(id)] += 1;
      }
  }
  job.sum(counts);
  const double rows = counts.back();
  if (rows == 0) return;
  const double even = rows * static_cast<double>(config.moe.top_k) / static_cast<double>(config.moe.num_experts);
  double worst = 0;
  for (size_t l = 0; l < layers.size(); ++l)
    for (size_t e = 0; e < experts; ++e) {
      const double load = counts[l * experts + e] / even;
      row.set(fmt::format("moe/load/{}/{}", layers[l], e), load);
      worst = std::max(worst, load);
    }
  row.set("moe/load_max", worst);
}

void StepTimer::mark(const std::string& phase, MetricsRow& row) {
  const double t = now();
  row.set("timing_s/" + phase, t - last_);
  last_ = t;
}

void StepTimer::finish(const std::vector<ScoredSample>& samples, MetricsRow& row) {
  const double seconds = now() - start_;
  double tokens = 0, response = 0;
  for (const ScoredSample& s : samples) {
    tokens += static_cast<double>(s.trajectory.num_tokens());
    response += static_cast<double>(s.trajectory.response_ids.size());
  }
  row.set("timing_s/step", seconds);
  row.set("perf/throughput", tokens / seconds);
  const double generating = row.find("timing_s/gen").value_or(0.0);
  if (generating > 0) row.set("perf/rollout_tokens_per_s", response / generating);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  row.set("perf/max_memory_gb", static_cast<double>(usage.ru_maxrss) / 1e6);
}

}  // namespace weft
