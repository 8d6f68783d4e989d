#include "weft/train/router_aux.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/softmax.h>

#include "weft/nn/moe.h"

namespace weft {

at::Tensor AuxLossRouting::route(int64_t, const at::Tensor& logits, const kernels::RouterParams& params) {
  logits_.push_back(logits);
  ids_.push_back(nn::router_select(logits, params));
  return ids_.back();
}

at::Tensor AuxLossRouting::loss(const std::vector<int64_t>& offsets) const {
  at::Tensor total;
  for (size_t l = 0; l < logits_.size(); ++l) {
    const int64_t experts = logits_[l].size(1), k = ids_[l].size(1);
    at::Tensor probabilities = at::softmax(logits_[l], 1);
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      const int64_t n = offsets[s + 1] - offsets[s];
      if (n == 0) continue;
      at::Tensor chosen = ids_[l].narrow(0, offsets[s], n).reshape({n * k}).to(at::kLong);
      at::Tensor share = at::bincount(chosen, {}, experts).to(at::kFloat) / static_cast<double>(n);
      at::Tensor part = (share * probabilities.narrow(0, offsets[s], n).mean(0)).sum() * static_cast<double>(experts) /
                        static_cast<double>(logits_.size());
      total = total.defined() ? total + part : part;
    }
  }
  return total;
}

}  // namespace weft
