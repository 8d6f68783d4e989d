#pragma once
// The auxiliary load-balancing loss (arXiv:2101.03961, as Hugging Face's load_balancing_loss_func): E * sum over experts of
// (share of choices) * (mean probability), per sequence and layer; mean over layers, sum over sequences (the caller's weight makes it a
// mean). ATen operations on the live router logits, so it is differentiable on every device.

#include <ATen/core/Tensor.h>

#include <vector>

#include "weft/model/routing.h"

namespace weft {

// Live routing that keeps the logits' graph.
class AuxLossRouting : public Routing {
 public:
  at::Tensor route(int64_t layer, const at::Tensor& logits, const kernels::RouterParams& params) override;
  // Scalar; offsets [S+1] of the packed sequences. Undefined where no MoE layer ran.
  at::Tensor loss(const std::vector<int64_t>& offsets) const;

 private:
  std::vector<at::Tensor> logits_, ids_;
};

}  // namespace weft
