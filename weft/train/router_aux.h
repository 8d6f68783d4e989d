#pragma once
// The auxiliary load-balancing loss (arXiv:2101.03961, as Hugging Face's load_balancing_loss_func): E * sum over experts of
// (share of choices) * (mean probability), per sequence and layer; mean over layers, sum over sequences (the caller's weight
// makes it a mean). ATen operations on the live router logits, so it is differentiable on every device.

#include <ATen/core/Tensor.h>

#include <vector>

#include "weft/comm/communicator.h"
#include "weft/model/routing.h"

namespace weft {

// Live routing that keeps the logits' graph.
class AuxLossRouting : public Routing {
 public:
  at::Tensor route(int64_t layer, const at::Tensor& logits, const kernels::RouterParams& params) override;
  struct Loss {
    double value = 0;  // of the whole micro-batch: a multiple of 2^-40, so that sums over micro-batches and ranks have no order
    at::Tensor terms;  // scalar: this rank's rows' share of it, to differentiate; undefined where no MoE layer ran
  };
  // offsets [S+1] of the whole sequences; `rows`: which rows of them were routed here; `ranks` share the rows (null: all are
  // here). Collective over `ranks`.
  Loss loss(const std::vector<int64_t>& offsets, const std::vector<int64_t>& rows, const Communicator* ranks) const;

 private:
  std::vector<at::Tensor> logits_, ids_;
};

}  // namespace weft
