#include "weft/parallel/tensor_parallel.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "weft/nn/autograd.h"
#include "weft/nn/linear.h"
#include "weft/parallel/shard_cut.h"

namespace weft {

std::pair<int64_t, int64_t> slice_of_rows(int64_t rows, int64_t ranks, int64_t rank) {
  const int64_t chunk = (rows + ranks - 1) / ranks, begin = std::min(rows, rank * chunk);
  return {begin, std::min(rows, begin + chunk)};
}

namespace {

at::Tensor summed(const at::Tensor& terms, const Communicator& ranks, const char* purpose) {
  at::Tensor in = terms.to(at::kFloat).contiguous(), out = at::empty(in.sizes(), in.options());
  ranks.all_reduce(in.data_ptr(), out.data_ptr(), in.numel(), DType::kF32, ReduceOp::kSum, purpose).wait();
  return out.to(terms.scalar_type());
}

at::Tensor own_slice(const at::Tensor& x, const Communicator& ranks) {
  const auto [begin, end] = slice_of_rows(x.size(0), ranks.size(), ranks.rank());
  return x.narrow(0, begin, end - begin).contiguous();
}

at::Tensor gathered(const at::Tensor& slice, int64_t rows, const Communicator& ranks) {
  std::vector<int64_t> shape = slice.sizes().vec();
  shape[0] = rows;
  const ShardCut cut(shape, 0, ranks.size());
  at::Tensor in = slice.contiguous(), out = at::empty(shape, slice.options());
  ranks.all_gather(in.data_ptr(), out.data_ptr(), cut.counts, wire_dtype(in), "rows").wait();
  return out;
}

// The sum of the ranks' terms (in fp32): this rank's slice of its rows.
at::Tensor summed_slice(const at::Tensor& terms, const Communicator& ranks, const char* purpose) {
  const auto [begin, end] = slice_of_rows(terms.size(0), ranks.size(), ranks.rank());
  std::vector<int64_t> shape = terms.sizes().vec();
  const ShardCut cut(shape, 0, ranks.size());
  shape[0] = end - begin;
  at::Tensor in = terms.to(at::kFloat).contiguous(), out = at::empty(shape, in.options());
  ranks.reduce_scatter(in.data_ptr(), out.data_ptr(), cut.counts, DType::kF32, ReduceOp::kSum, purpose).wait();
  return out.to(terms.scalar_type());
}

}  // namespace

at::Tensor copy_to_ranks(const at::Tensor& x, const Communicator& ranks) {
  if (ranks.size() == 1) return x;
  return nn::record({x}, {}, x.detach(), [ranks](const nn::Grads& g) -> nn::Grads { return {summed(g[0], ranks, "tp_grad")}; });
}

at::Tensor sum_over_ranks(const at::Tensor& terms, const Communicator& ranks) {
  if (ranks.size() == 1) return terms;
  return nn::record({terms}, {}, summed(terms.detach(), ranks, "tp_sum"), [](const nn::Grads& g) -> nn::Grads { return {g[0]}; });
}

at::Tensor gather_for_columns(const at::Tensor& slice, int64_t rows, const Communicator& ranks) {
  if (ranks.size() == 1) return slice;
  return nn::record({slice}, {}, gathered(slice.detach(), rows, ranks),
                    [ranks](const nn::Grads& g) -> nn::Grads { return {summed_slice(g[0], ranks, "tp_grad")}; });
}

at::Tensor sum_to_slices(const at::Tensor& terms, const Communicator& ranks) {
  if (ranks.size() == 1) return terms;
  return nn::record({terms}, {}, summed_slice(terms.detach(), ranks, "tp_sum"),
                    [ranks, rows = terms.size(0)](const nn::Grads& g) -> nn::Grads { return {gathered(g[0], rows, ranks)}; });
}

at::Tensor row_parallel_linear(const at::Tensor& x, nn::Parameter& weight, nn::Parameter* bias, const Communicator& tp,
                               bool slices) {
  const int count = kernels::kNumLeaves / tp.size();
  const at::Tensor terms = nn::linear_leaves(x, weight, {weight.shape()[1], tp.rank() * count, count});
  const at::Tensor y = slices ? sum_to_slices(terms, tp) : sum_over_ranks(terms, tp);
  return bias ? nn::add_bias(y, *bias) : y;
}

at::Tensor slice_rows(const at::Tensor& x, const Communicator& ranks) {
  if (ranks.size() == 1) return x;
  return nn::record({x}, {}, own_slice(x.detach(), ranks),
                    [ranks, rows = x.size(0)](const nn::Grads& g) -> nn::Grads { return {gathered(g[0], rows, ranks)}; });
}

at::Tensor gather_rows(const at::Tensor& slice, int64_t rows, const Communicator& ranks) {
  if (ranks.size() == 1) return slice;
  return nn::record({slice}, {}, gathered(slice.detach(), rows, ranks),
                    [ranks](const nn::Grads& g) -> nn::Grads { return {own_slice(g[0], ranks)}; });
}

}  // namespace weft
