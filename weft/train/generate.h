#pragma once
// Prompts to scored trajectories: what a training step, a validation and `weft eval` share.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weft/env/reward_set.h"
#include "weft/io/trajectory.h"
#include "weft/rollout/engine.h"
#include "weft/train/data_parallel.h"
#include "weft/train/prompts.h"

namespace weft {

struct ScoredSample {
  Trajectory trajectory;  // rewards filled in
  std::string text;
};

// Sampling of one prompt, in the recipe's names; -1 or 0 in top_k: off.
SamplingParams training_params(const Recipe& recipe);
SamplingParams validation_params(const Recipe& recipe);

// All samples, by prompt in the given order and then by sample index; seeds are (seed, dataset row). `progress` is told how many samples
// have ended. Throws StoppedError at a token boundary when a stop was requested: the engine is empty again then.
std::vector<ScoredSample> generate(Engine& engine, const std::vector<Prompt>& prompts, const SamplingParams& params, uint64_t seed,
                                   const std::function<void(int64_t done, int64_t total)>& progress);

// generate and score, shared by the ranks: each takes its range of the prompts, and all get all samples.
std::vector<ScoredSample> generate_scored(Engine& engine, const DataParallel& ranks, RewardSet& rewards, const PromptSource& source,
                                          const Tokenizer& tokenizer, const std::vector<Prompt>& prompts, const SamplingParams& params,
                                          uint64_t seed, const std::function<void(int64_t done, int64_t total)>& progress);

// Fills rewards of samples of these prompts (n each, in order).
void score(RewardSet& rewards, const PromptSource& source, const std::vector<Prompt>& prompts, std::vector<ScoredSample>& samples);

}  // namespace weft
