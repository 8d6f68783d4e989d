#include "weft/parallel/gradient_norm.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <cmath>
#include <limits>
#include <unordered_set>

#include "weft/base/error.h"
#include "weft/kernels/optimizer.h"
#include "weft/parallel/fully_shard.h"
#include "weft/parallel/sharded_module.h"

namespace weft {
namespace {

// Sum of |g|^p, or the largest |g|.
double power_of(const at::Tensor& grad, double p) {
  if (!grad.defined() || grad.numel() == 0) return 0;
  const at::Tensor g = grad.detach().contiguous();
  if (p == 2 && g.is_cpu() && g.scalar_type() == at::kFloat) return kernels::sum_of_squares(g.data_ptr<float>(), g.numel());
  const at::Tensor size = g.to(at::kDouble).abs();
  const double value = std::isinf(p) ? size.max().item<double>() : size.pow(p).sum().item<double>();
  // The larger of a number and a NaN depends on their order.
  return std::isnan(value) ? std::numeric_limits<double>::infinity() : value;
}

}  // namespace

double gradient_norm(const std::vector<GradientPart>& parts, double p, const RankMesh& mesh) {
  if (!(p > 0)) throw ValueError(fmt::format("a norm of order {}: it must be above 0", p));
  at::NoGradGuard guard;
  const bool largest = std::isinf(p);
  std::vector<double> shards;
  for (const GradientPart& part : parts)
    if (part.sharded) shards.push_back(power_of(part.grad, p));
  mesh.replica
      .all_reduce(shards.data(), shards.data(), static_cast<int64_t>(shards.size()), DType::kF64,
                  largest ? ReduceOp::kMax : ReduceOp::kSum, "grad_norm")
      .wait();
  size_t next = 0;
  double total = 0;
  for (const GradientPart& part : parts) {
    const double power = part.sharded ? shards[next++] : power_of(part.grad, p);
    total = largest ? std::max(total, power) : total + power;
  }
  return largest ? total : p == 2 ? std::sqrt(total) : std::pow(total, 1 / p);
}

double gradient_norm(const std::vector<nn::Parameter*>& parameters, double p, const RankMesh& mesh) {
  std::vector<GradientPart> parts;
  for (const nn::Parameter* parameter : parameters)
    if (parameter->trainable()) parts.push_back({counts_here(*parameter) ? parameter->grad() : at::Tensor(), parameter->sharded()});
  return gradient_norm(parts, p, mesh);
}

double gradient_norm(torch::nn::Module& module, double p, const RankMesh& mesh) {
  std::unordered_set<std::string> sharded;
  for (ShardGroup* g : shard_groups(module))
    for (const std::string& name : g->parameter_names()) sharded.insert(name);
  std::vector<GradientPart> parts;
  std::unordered_set<const at::TensorImpl*> seen;  // tied ones have several names
  for (const auto& item : module.named_parameters())
    if (item.value().requires_grad() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      parts.push_back({item.value().grad(), sharded.contains(item.key())});
  return gradient_norm(parts, p, mesh);
}

}  // namespace weft
