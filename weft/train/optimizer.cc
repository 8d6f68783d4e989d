#include "weft/train/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "weft/base/error.h"
#include "weft/base/math.h"
#include "weft/base/threads.h"
#include "weft/base/trace.h"
#include "weft/kernels/optimizer.h"
#include "weft/nn/arena_tensor.h"
#include "weft/parallel/fully_shard.h"

namespace weft {

double learning_rate_factor(const std::string& type, int64_t step, int64_t warmup, int64_t total, double min_ratio) {
  if (step < warmup) return static_cast<double>(step) / static_cast<double>(warmup);
  if (type == "constant") return 1.0;
  const double progress =
      std::clamp(static_cast<double>(step - warmup) / static_cast<double>(std::max<int64_t>(1, total - warmup)), 0.0, 1.0);
  if (type == "linear") return std::max(min_ratio, 1.0 - (1.0 - min_ratio) * progress);
  WEFT_CHECK(type == "cosine", "schedule {}", type);
  return min_ratio + (1.0 - min_ratio) * 0.5 * (1.0 + det_cos(std::numbers::pi * progress));
}

Optimizer::Optimizer(std::vector<nn::Parameter*> parameters, OptimRecipe recipe, int64_t total_updates,
                     SumOverShards sum_over_shards, std::shared_ptr<Arena> memory)
    : memory_(std::move(memory)),
      recipe_(std::move(recipe)),
      sum_over_shards_(std::move(sum_over_shards)),
      total_updates_(total_updates) {
  const auto zeros = [&](const nn::Parameter& p) {
    return memory_ && p.master().is_cpu() ? nn::arena_tensor(memory_, p.local_shape(), at::kFloat) : at::zeros_like(p.master());
  };
  for (nn::Parameter* p : parameters)
    if (p->trainable()) slots_.push_back({p, zeros(*p), zeros(*p)});
}

double Optimizer::grad_norm() {
  const TraceSpan span("optimizer");
  std::vector<double> parts;
  for (const Slot& s : slots_) {
    const at::Tensor& g = s.parameter->grad();
    parts.push_back(!g.defined() || !counts_here(*s.parameter) ? 0.0
                    : g.is_cpu()                               ? kernels::sum_of_squares(g.data_ptr<float>(), g.numel())
                                                               : g.to(at::kDouble).pow(2).sum().item<double>());
  }
  if (sum_over_shards_) sum_over_shards_(parts);
  double sum = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!std::isfinite(parts[i]))
      throw ValueError(
          fmt::format("the gradient of {} is not finite at update {}: nothing was updated. Lower actor.optim.lr, or look at the "
                      "rewards and advantages of this step",
                      slots_[i].parameter->name(), updates_));
    sum += parts[i];
  }
  return std::sqrt(sum);
}

double Optimizer::next_lr() const {
  return recipe_.lr *
         learning_rate_factor(recipe_.lr_scheduler_type, updates_, recipe_.lr_warmup_steps, total_updates_, recipe_.min_lr_ratio);
}

double Optimizer::update(double norm) {
  const TraceSpan span("optimizer");
  require_awake();
  at::NoGradGuard guard;
  kernels::AdamWStep step;
  step.lr = next_lr();
  step.beta1 = recipe_.betas[0];
  step.beta2 = recipe_.betas[1];
  step.eps = recipe_.eps;
  step.step = ++updates_;
  // torch.nn.utils.clip_grad_norm_'s coefficient.
  step.grad_scale = recipe_.clip_grad > 0 ? std::min(1.0, recipe_.clip_grad / (norm + 1e-6)) : 1.0;
  for (Slot& s : slots_) {
    nn::Parameter& p = *s.parameter;
    step.weight_decay = p.dim() >= 2 ? recipe_.weight_decay : 0.0;
    at::Tensor& grad = p.mutable_grad();
    if (grad.is_cpu()) {
      kernels::adamw(step, grad.data_ptr<float>(), p.master().data_ptr<float>(), s.m.data_ptr<float>(), s.v.data_ptr<float>(),
                     p.master().numel());
    } else {
      const double t = static_cast<double>(step.step);
      at::Tensor g = grad * step.grad_scale;
      p.master().mul_(1.0 - step.lr * step.weight_decay);
      s.m.mul_(step.beta1).add_(g, 1.0 - step.beta1);
      s.v.mul_(step.beta2).addcmul_(g, g, 1.0 - step.beta2);
      at::Tensor denominator = (s.v.sqrt() / std::sqrt(1.0 - std::pow(step.beta2, t))).add_(step.eps);
      p.master().addcdiv_(s.m, denominator, -step.lr / (1.0 - std::pow(step.beta1, t)));
    }
    p.updated();
    grad.zero_();
  }
  return step.lr;
}

void Optimizer::zero_grad() {
  for (Slot& s : slots_) s.parameter->zero_grad();
}

}  // namespace weft
