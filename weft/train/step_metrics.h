#pragma once
// Metrics of one step from its samples: rewards, lengths, gap, expert load, times. docs/metrics.md lists the names.

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "weft/env/reward_set.h"
#include "weft/model/model_config.h"
#include "weft/rl/metrics.h"
#include "weft/train/generate.h"
#include "weft/train/metrics.h"

namespace weft {

void add_sample_metrics(const std::vector<ScoredSample>& samples, const RewardSet& rewards, const Recipe& recipe, MetricsRow& row);
// prefix + kl, k3_kl, mean_abs, max_abs, ratio_above_2, chi2_token, chi2_seq, ess.
void add_gap_metrics(const std::string& prefix, const LogProbGap& gap, MetricsRow& row);
// moe/load/<layer>/<expert>: tokens of the step that took the expert, relative to an even share; needs routing traces. Collective over
// the job.
void add_expert_load(const std::vector<ScoredSample>& samples, const Job& job, const ModelConfig& config, MetricsRow& row);

// timing_s/<phase>, and the rates of a step.
class StepTimer {
 public:
  StepTimer() : start_(now()), last_(start_) {}
  void mark(const std::string& phase, MetricsRow& row);
  void finish(const std::vector<ScoredSample>& samples, MetricsRow& row);

 private:
  static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
  double start_, last_;
};

}  // namespace weft
