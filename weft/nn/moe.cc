#include "weft/nn/moe.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include "weft/nn/activation.h"
#include "weft/nn/autograd.h"
#include "weft/nn/linear.h"
#include "weft/nn/view.h"

namespace weft::nn {
namespace {

using Offsets = std::shared_ptr<const std::vector<int64_t>>;

at::Tensor grouped_linear(const at::Tensor& x, Parameter& weight, const Offsets& offsets, at::ScalarType out) {
  at::Tensor y = at::empty({x.size(0), weight.compute_shape()[1]}, x.options().dtype(out));
  kernels::grouped_gemm(matrix(x), weight.packed(), *offsets, matrix(y));
  at::Tensor xs = x.detach();
  Parameter* w = &weight;
  const bool x_grad = x.requires_grad();
  return record({x}, {w}, y, [xs, w, offsets, x_grad](const Grads& g) -> Grads {
    const at::Tensor dy = g[0].contiguous();
    if (w->trainable()) {
      kernels::grouped_gemm_weight_grad(matrix(dy), matrix(xs), *offsets, w->grad_data());
      w->notify_grad();
    }
    if (!x_grad) return {at::Tensor()};
    at::Tensor dx = at::empty_like(xs);
    kernels::grouped_gemm_input_grad(matrix(dy), w->compute().data_ptr(), dtype_of(w->compute()), *offsets, matrix(dx));
    return {dx};
  });
}

// Every expert on the tokens that chose it, by index_select: the reference for other devices.
at::Tensor composed(const at::Tensor& x, const at::Tensor& gates, const at::Tensor& ids, Parameter& gate_up, Parameter& down) {
  if (x.size(0) == 0) return x.to(at::kFloat);  // keeps the graph
  const int64_t experts = gate_up.compute_shape()[0];
  at::Tensor w1 = gate_up.leaf(), w2 = down.leaf(), y = at::zeros({x.size(0), x.size(1)}, x.options().dtype(at::kFloat));
  for (int64_t e = 0; e < experts; ++e) {
    at::Tensor hit = (ids == e).nonzero();
    if (hit.size(0) == 0) continue;
    at::Tensor token = hit.select(1, 0), slot = hit.select(1, 1);
    at::Tensor h = swiglu_fused(at::matmul(x.index_select(0, token), w1.select(0, e).t()).to(at::kFloat), x.scalar_type());
    at::Tensor o = at::matmul(h, w2.select(0, e).t()).to(at::kFloat);
    at::Tensor g = gates.reshape({-1}).index_select(0, token * gates.size(1) + slot);
    y = y.index_add(0, token, o * g.unsqueeze(1));
  }
  return y;
}

}  // namespace

at::Tensor router_logits(const at::Tensor& x, Parameter& weight) { return linear(x, weight, nullptr, at::kFloat); }

at::Tensor router_select(const at::Tensor& logits, const kernels::RouterParams& params) {
  const at::Tensor l = logits.detach().to(at::kCPU).contiguous();
  at::Tensor ids = at::empty({l.size(0), params.top_k}, l.options().dtype(at::kInt));
  kernels::router_select(l.data_ptr<float>(), l.size(0), l.size(1), params, ids.data_ptr<int32_t>());
  return ids.to(logits.device());
}

at::Tensor router_gates(const at::Tensor& logits, const at::Tensor& ids, const kernels::RouterParams& params) {
  if (!use_kernels(logits, kRouterOp)) {
    at::Tensor index = ids.to(at::kLong), g;
    if (params.score == kernels::RouterScore::kSigmoid) {
      g = at::sigmoid(logits).gather(1, index);
      if (params.normalize) g = g / (g.sum(1, true) + 1e-20);
    } else {
      g = params.normalize ? at::softmax(logits.gather(1, index), 1) : at::softmax(logits, 1).gather(1, index);
    }
    return g * params.scale;
  }
  at::Tensor gates = at::empty({logits.size(0), params.top_k}, fp32());
  at::Tensor l = logits.detach();
  kernels::router_gates(l.data_ptr<float>(), l.size(0), l.size(1), params, ids.data_ptr<int32_t>(), gates.data_ptr<float>());
  at::Tensor gs = gates.detach();
  return record({logits}, {}, gates, [l, gs, ids, params](const Grads& g) -> Grads {
    at::Tensor d = at::zeros(l.sizes(), fp32());
    const at::Tensor dg = g[0].contiguous();
    kernels::router_gates_backward(dg.data_ptr<float>(), l.data_ptr<float>(), gs.data_ptr<float>(), l.size(0), l.size(1), params,
                                   ids.data_ptr<int32_t>(), d.data_ptr<float>());
    return {d};
  });
}

at::Tensor permute_rows(const at::Tensor& x, const PermutationPtr& p, int64_t k) {
  at::Tensor rows = at::empty({static_cast<int64_t>(p->order.size()), x.size(1)}, x.options());
  kernels::permute_rows(matrix(x), *p, k, matrix(rows));
  return record({x}, {}, rows, [p, k, shape = x.sizes().vec(), dtype = x.scalar_type()](const Grads& g) -> Grads {
    at::Tensor dx = at::empty(shape, fp32());
    kernels::permute_rows_backward(matrix(g[0].contiguous()), *p, k, dx.data_ptr<float>());
    return {to_dtype(dx, dtype)};
  });
}

at::Tensor expert_mlp(const at::Tensor& rows, const Offsets& offsets, Parameter& gate_up, Parameter& down) {
  at::Tensor h = swiglu_fused(grouped_linear(rows, gate_up, offsets, at::kFloat), rows.scalar_type());
  return grouped_linear(h, down, offsets, rows.scalar_type());
}

at::Tensor combine_rows(const at::Tensor& out, const at::Tensor& gates, const PermutationPtr& p, int64_t k) {
  at::Tensor y = at::empty({gates.size(0), out.size(1)}, fp32());
  at::Tensor os = out.detach(), gs = gates.detach().contiguous();
  kernels::combine_forward(matrix(os), *p, k, gs.data_ptr<float>(), y.data_ptr<float>());
  return record({out, gates}, {}, y, [os, gs, p, k](const Grads& g) -> Grads {
    const at::Tensor dy = g[0].contiguous();
    at::Tensor dout = at::empty_like(os), dgates = at::empty_like(gs);
    kernels::combine_backward(dy.data_ptr<float>(), matrix(os), *p, k, gs.data_ptr<float>(), matrix(dout), dgates.data_ptr<float>());
    return {dout, dgates};
  });
}

at::Tensor moe_experts(const at::Tensor& x, const at::Tensor& gates, const at::Tensor& ids, Parameter& gate_up, Parameter& down) {
  if (!use_kernels(x, kExpertsOp)) return composed(x, gates, ids, gate_up, down);
  const int64_t k = ids.size(1), experts = gate_up.compute_shape()[0];
  const auto p = std::make_shared<const kernels::Permutation>(kernels::make_permutation(ints(ids), k, experts));
  const Offsets offsets(p, &p->offsets);
  return combine_rows(expert_mlp(permute_rows(x, p, k), offsets, gate_up, down), gates, p, k);
}

}  // namespace weft::nn
