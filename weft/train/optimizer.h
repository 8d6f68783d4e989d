#pragma once
// AdamW over a model's fp32 masters, gradient clipping by the global norm, learning-rate schedules.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/nn/parameter.h"
#include "weft/train/recipe.h"

namespace weft {

// Factor of the peak rate at update `step` (from 0): linear from 0 over `warmup` updates (Hugging Face's schedules, which verl uses),
// then constant, linear or cosine down to min_ratio at `total`.
double learning_rate_factor(const std::string& type, int64_t step, int64_t warmup, int64_t total, double min_ratio);

class Optimizer {
 public:
  // Frozen parameters are left out. Decay applies to parameters of two and more dims. Where parameters are sharded, `sum_over_shards`
  // replaces numbers, one a parameter, by their sums over the ranks that share the parameters.
  using SumOverShards = std::function<void(std::vector<double>&)>;
  // Moments lie in `memory` (null: libtorch's): while it sleeps, reading them is a ValueError.
  Optimizer(std::vector<nn::Parameter*> parameters, OptimRecipe recipe, int64_t total_updates, SumOverShards sum_over_shards = {},
            std::shared_ptr<Arena> memory = {});

  // sqrt of the sum of squares of all gradients, in double; a parameter without a gradient counts as zero. Throws ValueError when it is
  // not finite, naming the first parameter at fault: nothing has been updated then. The same bits on every rank.
  double grad_norm();
  // Clips by `norm` (what grad_norm returned), updates, refreshes compute copies, zeroes gradients. Returns the rate used.
  double update(double norm);
  void zero_grad();

  int64_t updates() const { return updates_; }
  double next_lr() const;

  // For checkpoints: moments by parameter name, "m/<name>" and "v/<name>", fp32.
  struct Slot {
    nn::Parameter* parameter;
    at::Tensor m, v;
  };
  const std::vector<Slot>& slots() const {
    require_awake();
    return slots_;
  }
  void set_updates(int64_t n) { updates_ = n; }

 private:
  void require_awake() const {
    if (memory_) memory_->require();
  }

  std::vector<Slot> slots_;
  std::shared_ptr<Arena> memory_;
  OptimRecipe recipe_;
  SumOverShards sum_over_shards_;
  int64_t total_updates_, updates_ = 0;
};

}  // namespace weft
