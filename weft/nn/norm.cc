#include "weft/nn/norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>

#include "weft/kernels/norm.h"
#include "weft/nn/autograd.h"
#include "weft/nn/view.h"

namespace weft::nn {

Normed rms_norm(const at::Tensor& x, Parameter& weight, float eps, at::ScalarType dtype, bool want_exact) {
  const int64_t h = weight.numel();
  const bool narrow = dtype != at::kFloat;
  if (!use_kernels(x, kNormOp)) {
    at::Tensor rows = x.reshape({-1, h});
    at::Tensor y = (rows * at::rsqrt(rows.pow(2).mean(-1, true) + eps) * weight.leaf()).reshape(x.sizes());
    return {y, narrow ? y.to(dtype) : y};
  }
  const int64_t rows = h == 0 ? 0 : x.numel() / h;
  at::Tensor exact, rounded, rstd = at::empty({rows}, fp32());
  if (want_exact || !narrow) exact = at::empty_like(x);
  if (narrow) rounded = at::empty(x.sizes(), x.options().dtype(dtype));
  const kernels::ConstMatrix xm{x.data_ptr(), DType::kF32, rows, h, h};
  kernels::rms_norm_forward(xm, weight.compute().data_ptr<float>(), eps, exact.defined() ? exact.data_ptr<float>() : nullptr,
                            narrow ? static_cast<bf16*>(rounded.data_ptr()) : nullptr, rstd.data_ptr<float>());
  at::Tensor xs = x.detach();
  Parameter* w = &weight;
  auto backward = [xs, rstd, w, rows, h](const Grads& g) -> Grads {
    // Two outputs of one value: their gradients are added in fp32 (rounded first, then exact).
    at::Tensor dy;
    for (const at::Tensor& part : g) {
      if (!part.defined()) continue;
      const at::Tensor p = part.contiguous();
      if (!dy.defined()) {
        dy = p;
        continue;
      }
      at::Tensor sum = at::empty(xs.sizes(), fp32());
      sum.copy_(dy);
      kernels::accumulate({p.data_ptr(), dtype_of(p), rows, h, h}, sum.data_ptr<float>());
      dy = sum;
    }
    at::Tensor dx = at::empty(xs.sizes(), fp32());
    std::vector<float> unused(w->trainable() ? 0 : h);
    kernels::rms_norm_backward({dy.data_ptr(), dtype_of(dy), rows, h, h}, {xs.data_ptr(), DType::kF32, rows, h, h},
                               w->compute().data_ptr<float>(), rstd.data_ptr<float>(), dx.data_ptr<float>(), false,
                               w->trainable() ? w->grad_data() : unused.data());
    if (w->trainable()) w->notify_grad();
    return {dx};
  };
  if (narrow && exact.defined()) {
    auto outs = record({x}, {w}, std::vector<at::Tensor>{rounded, exact}, backward);
    return {outs[1], outs[0]};
  }
  at::Tensor y = record({x}, {w}, narrow ? rounded : exact, backward);
  return {narrow ? at::Tensor() : y, y};
}

}  // namespace weft::nn
