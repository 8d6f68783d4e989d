#pragma once
// Prompts to scored trajectories: what a training step, a validation and `weft eval` share.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weft/env/reward_set.h"
#include "weft/io/trajectory.h"
#include "weft/rollout/engine.h"
#include "weft/train/job.h"
#include "weft/train/prompts.h"

namespace weft {

struct ScoredSample {
  Trajectory trajectory;  // rewards filled in
  std::string text;
  // On a job of several ranks: whether the trajectory's routing trace and kept sets are here (sample_details.h), and whether this is
  // the one rank that counts them.
  bool has_details = true, counts_here = true;
};

// Sampling of one prompt, in the recipe's names; -1 or 0 in top_k: off.
SamplingParams training_params(const Recipe& recipe);
SamplingParams validation_params(const Recipe& recipe);

// All samples, by prompt in the given order and then by sample index; seeds are (seed, dataset row). `progress` is told how many
// samples have ended. Throws StoppedError at a token boundary when a stop was requested: the engine is empty again then.
std::vector<ScoredSample> generate(Engine& engine, const std::vector<Prompt>& prompts, const SamplingParams& params,
                                   uint64_t seed, const std::function<void(int64_t done, int64_t total)>& progress);

// What a rank does of the sampling: the tp ranks of a place run the same prompts, and one of them answers.
struct RolloutShare {
  Engine* engine = nullptr;  // null: nothing
  int64_t place = 0, places = 1;
  bool answers = true;
};

// generate and score, shared by the rollout's places: each takes its range of the prompts, and all ranks of the job get all
// samples, but for their details, which stay where they were sampled. Collective over the job.
std::vector<ScoredSample> generate_scored(const RolloutShare& rollout, const Job& job, RewardSet& rewards,
                                          const PromptSource& source, const Tokenizer& tokenizer,
                                          const std::vector<Prompt>& prompts, const SamplingParams& params, uint64_t seed,
                                          const std::function<void(int64_t done, int64_t total)>& progress);

// Fills rewards of samples of these prompts (n each, in order).
void score(RewardSet& rewards, const PromptSource& source, const std::vector<Prompt>& prompts,
           std::vector<ScoredSample>& samples);

}  // namespace weft
