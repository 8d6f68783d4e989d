#include "weft/train/evaluate.h"

#include <map>

namespace weft {

Evaluation evaluate(const RolloutShare& rollout, const Job& job, const PromptSource& source, RewardSet& rewards, const Tokenizer& tokenizer,
                    const SamplingParams& params, uint64_t seed, const std::function<void(int64_t, int64_t)>& progress,
                    const std::function<void(std::vector<ScoredSample>&)>& more_rewards) {
  Evaluation e;
  for (int64_t row : source.rows()) e.prompts.push_back(source.prompt(row));
  e.samples = generate_scored(rollout, job, rewards, source, tokenizer, e.prompts, params, seed, progress);
  if (more_rewards) more_rewards(e.samples);
  std::map<std::string, std::pair<double, double>> sums;  // sum, count
  double length = 0, invalid = 0;
  const size_t n = static_cast<size_t>(params.n);
  for (size_t i = 0; i < e.samples.size(); ++i) {
    const Trajectory& t = e.samples[i].trajectory;
    const std::string& name = e.prompts[i / n].data_source;
    const std::string prefix = fmt::format("val/{}/", name.empty() ? "all" : name), suffix = fmt::format("/mean@{}", n);
    length += static_cast<double>(t.response_ids.size());
    if (!t.reward_valid) {
      invalid += 1;
      continue;
    }
    for (const auto& [reward, value] : t.rewards) {
      auto& s = sums[prefix + reward + suffix];
      s.first += value, s.second += 1;
    }
    if (rewards.size() > 1) {
      auto& s = sums[prefix + "reward" + suffix];
      s.first += t.reward, s.second += 1;
    }
  }
  for (const auto& [name, s] : sums) e.metrics.set(name, s.first / s.second);
  const double count = e.samples.empty() ? 1.0 : static_cast<double>(e.samples.size());
  e.metrics.set("val_response_length/mean", length / count);
  if (invalid > 0) e.metrics.set("val_no_reward_share/mean", invalid / count);
  return e;
}

}  // namespace weft
