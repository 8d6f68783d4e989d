#include "weft/nn/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>

#include "weft/kernels/elementwise.h"
#include "weft/nn/autograd.h"
#include "weft/nn/view.h"

namespace weft::nn {

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, at::ScalarType out) {
  if (!use_kernels(gate, kActivationOp)) return (at::silu(gate) * up).to(out);
  at::Tensor y = at::empty(gate.sizes(), gate.options().dtype(out));
  kernels::swiglu_forward(matrix(gate), matrix(up), matrix(y));
  at::Tensor gs = gate.detach(), us = up.detach();
  return record({gate, up}, {}, y, [gs, us](const Grads& g) -> Grads {
    at::Tensor dg = at::empty(gs.sizes(), fp32()), du = at::empty(us.sizes(), fp32());
    kernels::swiglu_backward(matrix(g[0].contiguous()), matrix(gs), matrix(us), matrix(dg), matrix(du));
    return {dg, du};
  });
}

at::Tensor swiglu_fused(const at::Tensor& gate_up, at::ScalarType out) {
  const int64_t i = gate_up.size(1) / 2;
  if (!use_kernels(gate_up, kActivationOp)) return (at::silu(gate_up.narrow(1, 0, i)) * gate_up.narrow(1, i, i)).to(out);
  at::Tensor y = at::empty({gate_up.size(0), i}, gate_up.options().dtype(out));
  at::Tensor s = gate_up.detach();
  kernels::swiglu_forward(matrix(s.narrow(1, 0, i)), matrix(s.narrow(1, i, i)), matrix(y));
  return record({gate_up}, {}, y, [s, i](const Grads& g) -> Grads {
    at::Tensor d = at::empty(s.sizes(), fp32());
    kernels::swiglu_backward(matrix(g[0].contiguous()), matrix(s.narrow(1, 0, i)), matrix(s.narrow(1, i, i)), matrix(d.narrow(1, 0, i)),
                             matrix(d.narrow(1, i, i)));
    return {d};
  });
}

}  // namespace weft::nn
