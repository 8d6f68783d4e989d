#include "weft/nn/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>

#include <functional>

#include "weft/nn/autograd.h"
#include "weft/nn/view.h"

namespace weft::nn {

namespace {

at::Tensor product(const at::Tensor& x, Parameter& weight, Parameter* bias, at::ScalarType out, const std::function<void(kernels::Matrix)>& forward) {
  at::Tensor y = at::empty({x.size(0), weight.compute_shape()[0]}, x.options().dtype(out));
  forward(matrix(y));
  at::Tensor xs = x.detach();
  Parameter* w = &weight;
  const bool x_grad = x.requires_grad();
  return record({x}, {w, bias}, y, [xs, w, bias, x_grad](const Grads& g) -> Grads {
    const at::Tensor dy = g[0].contiguous();
    if (bias && bias->trainable()) {
      kernels::gemm_bias_grad(matrix(dy), bias->grad_data());
      bias->notify_grad();
    }
    if (w->trainable()) {
      kernels::gemm_weight_grad(matrix(dy), matrix(xs), w->grad_data());
      w->notify_grad();
    }
    if (!x_grad) return {at::Tensor()};
    at::Tensor dx = at::empty_like(xs);
    kernels::gemm_input_grad(matrix(dy), matrix(w->compute()), matrix(dx));
    return {dx};
  });
}

}  // namespace

at::Tensor linear(const at::Tensor& x, Parameter& weight, Parameter* bias, at::ScalarType out, kernels::Chain chain) {
  if (!use_kernels(x, kLinearOp)) {
    at::Tensor y = at::matmul(x.to(weight.param_dtype()), weight.leaf().t()).to(at::kFloat);
    if (bias) y = y + bias->leaf();
    return y.to(out);
  }
  return product(x, weight, bias, out, [&](kernels::Matrix y) {
    kernels::gemm(matrix(x), weight.packed(), bias ? bias->compute().data_ptr<float>() : nullptr, y, chain);
  });
}

at::Tensor linear_leaves(const at::Tensor& x, Parameter& weight, kernels::LeafSpan span) {
  if (!use_kernels(x, kLinearOp)) return linear(x, weight, nullptr, at::kFloat);
  return product(x, weight, nullptr, at::kFloat, [&](kernels::Matrix y) { kernels::gemm_leaves(matrix(x), weight.packed(), span, y); });
}

at::Tensor add_bias(const at::Tensor& y, Parameter& bias) {
  if (!use_kernels(y, kLinearOp)) return y + bias.leaf();
  at::Tensor out = y.detach() + bias.compute();  // one IEEE addition an element, as in the product's own
  Parameter* b = &bias;
  return record({y}, {b}, out, [b](const Grads& g) -> Grads {
    if (b->trainable()) {
      kernels::gemm_bias_grad(matrix(g[0].contiguous()), b->grad_data());
      b->notify_grad();
    }
    return {g[0]};
  });
}

at::Tensor to_dtype(const at::Tensor& x, at::ScalarType dtype) {
  if (x.scalar_type() == dtype) return x;
  if (!use_kernels(x, kLinearOp)) return x.to(dtype);
  WEFT_CHECK(dtype == at::kBFloat16 && x.scalar_type() == at::kFloat && x.is_contiguous(), "only fp32 is rounded to bf16");
  at::Tensor y = at::empty_like(x, x.options().dtype(dtype));
  kernels::convert(x.data_ptr<float>(), static_cast<bf16*>(y.data_ptr()), x.numel());
  return record({x}, {}, y, [](const Grads& g) -> Grads {
    at::Tensor dx = at::empty(g[0].sizes(), fp32());
    const at::Tensor dy = g[0].contiguous();
    kernels::convert(static_cast<const bf16*>(dy.data_ptr()), dx.data_ptr<float>(), dx.numel());
    return {dx};
  });
}

at::Tensor add(const at::Tensor& a, const at::Tensor& b) {
  if (!use_kernels(a, kLinearOp)) return a + b;
  at::Tensor y = at::empty_like(a);
  kernels::add(a.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(), a.numel());
  return record({a, b}, {}, y, [](const Grads& g) -> Grads { return {g[0], g[0]}; });
}

at::Tensor scale(const at::Tensor& x, float s) { return at::mul(x, s); }  // one IEEE multiply an element on every device

}  // namespace weft::nn
