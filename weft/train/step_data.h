#pragma once
// What one step of `weft train` carries from its samples to its updates: plain data.

#include <cstdint>
#include <vector>

#include "weft/io/trajectory.h"
#include "weft/train/generate.h"
#include "weft/train/metrics.h"
#include "weft/train/prompts.h"
#include "weft/train/update.h"

namespace weft {

// One step's samples and what its updates read. Indices run over all samples, prompt by prompt.
struct StepData {
  int64_t step = 0;
  std::vector<Prompt> prompts;
  std::vector<ScoredSample> samples;
  std::vector<const Trajectory*> trajectories;
  std::vector<double> baselines;  // [prompt]: reward of its greedy response (NaN: none); empty: not asked for
  std::vector<std::vector<float>> old_log_probs, ref_log_probs, teacher_log_probs;  // empty: not (yet) there
  std::vector<std::vector<float>> values;       // [sample][response]: the critic's, before its updates; empty without one
  std::vector<std::vector<double>> advantages;  // [sample][response]
  std::vector<std::vector<double>> returns;     // [sample][response]: what the critic learns
  std::vector<std::vector<uint8_t>> masks;      // [sample][response]: tokens that are trained
  std::vector<std::vector<double>> weights;     // [sample][response]: rollout correction; empty: none
  int64_t batches = 0;       // of prompts that were taken from the data for this step
  double reference_kl = 0;   // mean over responses of their mean KL to the reference, where it is in the reward; NaN: no token counts
  int64_t updates_done = 0;
  std::vector<double> trained;  // [sample]: how often this rank has trained it, where it speaks for its place
  bool has_log_probs = false;  // old and reference ones came with a checkpoint
  UpdateSums sums;
  MetricsRow carried;  // known before the first update only

  void index() {
    trajectories.clear();
    for (const ScoredSample& s : samples) trajectories.push_back(&s.trajectory);
  }
};

}  // namespace weft
