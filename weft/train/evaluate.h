#pragma once
// Validation: generate, score, mean by source and reward. `weft eval`, and what training does every trainer.test_freq steps.

#include <functional>
#include <vector>

#include "weft/train/generate.h"
#include "weft/train/metrics.h"

namespace weft {

struct Evaluation {
  MetricsRow metrics;  // "val/<source>/<reward>/mean@n" ("all" for rows without a data_source), "val_response_length/mean"
  std::vector<Prompt> prompts;
  std::vector<ScoredSample> samples;
};

// Collective over the job.
Evaluation evaluate(const RolloutShare& rollout, const Job& job, const PromptSource& source, RewardSet& rewards, const Tokenizer& tokenizer,
                    const SamplingParams& params, uint64_t seed, const std::function<void(int64_t, int64_t)>& progress,
                    const std::function<void(std::vector<ScoredSample>&)>& more_rewards = {});

}  // namespace weft
