#include "weft/nn/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "weft/kernels/rope.h"
#include "weft/nn/autograd.h"
#include "weft/nn/view.h"

namespace weft::nn {

RopeTable rope_table(const at::Tensor& positions, const std::vector<float>& inv_freq, double attention_factor,
                     const at::Device& device) {
  const int64_t half = static_cast<int64_t>(inv_freq.size());
  RopeTable t{at::empty({positions.size(0), half}, fp32()), at::empty({positions.size(0), half}, fp32())};
  kernels::rope_table(ints(positions), inv_freq, attention_factor, t.cos.data_ptr<float>(), t.sin.data_ptr<float>());
  return {t.cos.to(device), t.sin.to(device)};
}

at::Tensor rope(const at::Tensor& x, int64_t heads, const RopeTable& table, at::ScalarType out) {
  if (!use_kernels(x, kRopeOp)) {
    const int64_t d = x.size(1) / heads, half = d / 2;
    at::Tensor v = x.reshape({x.size(0), heads, d});
    at::Tensor a = v.narrow(2, 0, half), b = v.narrow(2, half, half);
    at::Tensor c = table.cos.unsqueeze(1), s = table.sin.unsqueeze(1);
    return at::cat({a * c - b * s, b * c + a * s}, 2).reshape(x.sizes()).to(out);
  }
  at::Tensor y = at::empty(x.sizes(), x.options().dtype(out));
  kernels::rope_apply(matrix(x), heads, table.cos.data_ptr<float>(), table.sin.data_ptr<float>(), 1, matrix(y));
  return record({x}, {}, y, [table, heads](const Grads& g) -> Grads {
    const at::Tensor dy = g[0].contiguous();
    at::Tensor dx = at::empty(dy.sizes(), fp32());
    kernels::rope_apply(matrix(dy), heads, table.cos.data_ptr<float>(), table.sin.data_ptr<float>(), -1, matrix(dx));
    return {dx};
  });
}

}  // namespace weft::nn
