#pragma once
// Gradients of one mini-batch, by micro-batches with global denominators: the sum over micro-batches is the whole, whatever the split.

#include <map>
#include <string>
#include <vector>

#include "weft/rl/kl.h"
#include "weft/rl/metrics.h"
#include "weft/rl/policy_loss.h"
#include "weft/train/actor.h"
#include "weft/train/data_parallel.h"
#include "weft/train/metrics.h"

namespace weft {

// What an update reads, by sample of the step; `members` are the samples of the mini-batch.
struct UpdateContext {
  const std::vector<const Trajectory*>* trajectories = nullptr;
  const std::vector<std::vector<float>>* old_log_probs = nullptr;
  const std::vector<std::vector<float>>* ref_log_probs = nullptr;  // empty without a reference
  const std::vector<std::vector<double>>* advantages = nullptr;
  const std::vector<std::vector<uint8_t>>* masks = nullptr;
  const std::vector<std::vector<double>>* weights = nullptr;  // of the rollout correction; null or empty: none
  const std::vector<size_t>* members = nullptr;
  std::vector<double>* trained = nullptr;  // null, or [trajectory]: one more for each that this rank trained and speaks for
};

struct UpdateOptions {
  ActorOptions actor;
  const PolicyLoss* loss = nullptr;
  PolicyParams params;
  AggregationMode mode = AggregationMode::kTokenMean;
  double max_length = 0;  // seq-mean-token-sum-norm
  double off_policy_mask_threshold = 0;  // 0: off
  bool use_kl_loss = false;
  KlLossOptions kl;
  double entropy_coeff = 0;
  int64_t max_tokens_per_micro_batch = 16384;
};

// Sums over the updates of a step; mini-batches and resumed steps merge.
struct UpdateSums {
  double updates = 0, pg_loss = 0, kl_loss = 0, entropy_loss = 0, grad_norm = 0, lr = 0;
  double tokens = 0, clipped = 0, clipped_lower = 0, old_kl = 0, kl_sum = 0, entropy_sum = 0;
  double old_k3 = 0, old_max_abs = 0, old_ratio_above_2 = 0;  // staleness: current against old
  double off_policy_masked = 0;                               // tokens

  void merge(const UpdateSums& other);
  // ValueError when a loss is not finite: nothing was updated.
  void check_finite(int64_t step) const;
  // Means over tokens and updates, in verl's names.
  void report(MetricsRow& row) const;
  std::map<std::string, double> values() const;
  void restore(const std::map<std::string, double>& values);
};

// Adds the mini-batch's gradients to the parameters; the ranks share its trajectories. StoppedError between micro-batches when a stop was
// requested. What it reports has the same bits for any split into micro-batches and over ranks.
UpdateSums accumulate_gradients(CausalLM& model, const UpdateContext& context, const UpdateOptions& options,
                                const DataParallel& ranks = DataParallel());

}  // namespace weft
