#include "weft/train/router_aux.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

#include "weft/mesh/token_sharing.h"
#include "weft/nn/moe.h"

namespace weft {
namespace {
constexpr int kFractionBits = 40;  // of the fixed point in which terms are added: 2^23 in sum
}

at::Tensor AuxLossRouting::route(int64_t, const at::Tensor& logits, const kernels::RouterParams& params) {
  logits_.push_back(logits);
  ids_.push_back(nn::router_select(logits, params));
  return ids_.back();
}

AuxLossRouting::Loss AuxLossRouting::loss(const std::vector<int64_t>& offsets, const std::vector<int64_t>& rows,
                                          const Communicator* ranks) const {
  Loss out;
  const int64_t sequences = static_cast<int64_t>(offsets.size()) - 1, own = static_cast<int64_t>(rows.size());
  if (logits_.empty()) return out;
  const int64_t experts = logits_[0].size(1), k = ids_[0].size(1);
  // Of each row its sequence, and experts / length: what its probabilities weigh.
  at::Tensor sequence = at::empty({own, 1}, at::kLong), weight = at::empty({own, 1}, at::kFloat);
  int64_t sums[2] = {0, 0};  // of terms; of those that are not finite
  at::Tensor inverse_length = at::empty({sequences, 1}, at::kFloat);
  for (int64_t s = 0; s < sequences; ++s)
    inverse_length.data_ptr<float>()[s] =
        1.0f / static_cast<float>(std::max<int64_t>(1, offsets[static_cast<size_t>(s) + 1] - offsets[static_cast<size_t>(s)]));
  for (int64_t r = 0; r < own; ++r) {
    const int64_t of = sequence_of(offsets, rows[static_cast<size_t>(r)]);
    sequence.data_ptr<int64_t>()[r] = of;
    weight.data_ptr<float>()[r] =
        static_cast<float>(experts) / static_cast<float>(offsets[static_cast<size_t>(of) + 1] - offsets[static_cast<size_t>(of)]);
  }
  const at::Device device = logits_[0].device();
  sequence = sequence.to(device), weight = weight.to(device), inverse_length = inverse_length.to(device);
  // Choices of each sequence and expert, by layer.
  std::vector<at::Tensor> chosen;
  for (const at::Tensor& ids : ids_)
    chosen.push_back(at::bincount((ids.to(at::kLong) + sequence * experts).reshape({own * k}), {}, sequences * experts));
  at::Tensor counts = at::stack(chosen).to(at::kFloat).reshape({std::ssize(ids_), sequences, experts});
  if (ranks && ranks->size() > 1)
    ranks->all_reduce(counts.data_ptr(), counts.data_ptr(), counts.numel(), DType::kF32, ReduceOp::kSum, "router_aux").wait();
  for (size_t l = 0; l < logits_.size(); ++l) {
    const at::Tensor share = at::index_select(counts[static_cast<int64_t>(l)] * inverse_length, 0, sequence.reshape({own}));
    const at::Tensor terms = share * at::softmax(logits_[l], 1) * weight / static_cast<double>(logits_.size());
    const at::Tensor part = terms.sum(), host = terms.detach().to(at::kCPU).contiguous();
    out.terms = out.terms.defined() ? out.terms + part : part;
    for (int64_t i = 0; i < host.numel(); ++i) {
      const double term = static_cast<double>(host.data_ptr<float>()[i]);
      if (std::isfinite(term))
        sums[0] += std::llround(std::ldexp(term, kFractionBits));
      else
        ++sums[1];
    }
  }
  if (ranks && ranks->size() > 1) ranks->all_reduce(sums, sums, 2, DType::kI64, ReduceOp::kSum, "router_aux").wait();
  out.value = sums[1] > 0 ? NAN : std::ldexp(static_cast<double>(sums[0]), -kFractionBits);
  return out;
}

}  // namespace weft
