#include "weft/nn/attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/autograd.h>

#include "weft/nn/autograd.h"
#include "weft/nn/view.h"

namespace weft::nn {
namespace {

// One run at a time: softmax(q k^T * scale + causal) v, in fp32.
at::Tensor composed(const AttentionShape& s, const std::vector<int64_t>& offsets, const std::vector<kernels::QueryRun>& runs,
                    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  std::vector<at::Tensor> parts;
  const int64_t group = s.num_heads / s.num_kv_heads;
  for (const kernels::QueryRun& run : runs) {
    const int64_t n = run.end - run.begin, keys = run.first_position + n, first_key = offsets[static_cast<size_t>(run.sequence)];
    auto heads = [&](const at::Tensor& t, int64_t begin, int64_t rows, int64_t h) {
      return t.narrow(0, begin, rows).reshape({rows, h, s.head_dim}).transpose(0, 1).to(at::kFloat);
    };
    at::Tensor kk = heads(k, first_key, keys, s.num_kv_heads).repeat_interleave(group, 0);
    at::Tensor vv = heads(v, first_key, keys, s.num_kv_heads).repeat_interleave(group, 0);
    at::Tensor scores = at::matmul(heads(q, run.begin, n, s.num_heads), kk.transpose(1, 2)) * s.scale;
    at::Tensor mask = at::ones({n, keys}, q.options().dtype(at::kBool)).triu(run.first_position + 1);
    at::Tensor p = at::softmax(scores.masked_fill(mask, -INFINITY), -1);
    parts.push_back(at::matmul(p, vv).transpose(0, 1).reshape({n, s.num_heads * s.head_dim}).to(q.scalar_type()));
  }
  return parts.empty() ? q.clone() : at::cat(parts, 0);
}

}  // namespace

AttentionValues attention_values(const AttentionShape& s, const std::vector<int64_t>& key_offsets,
                                 const std::vector<kernels::QueryRun>& runs, const at::Tensor& q, const at::Tensor& k,
                                 const at::Tensor& v, bool want_lse) {
  at::NoGradGuard guard;
  const at::Tensor qs = q.detach(), ks = k.detach(), vs = v.detach();
  if (!use_kernels(qs, kAttentionOp)) return {composed(s, key_offsets, runs, qs, ks, vs), {}};
  AttentionValues out{at::empty_like(qs), want_lse ? at::empty({qs.size(0), s.num_heads}, fp32()) : at::Tensor()};
  kernels::attention_packed_forward(matrix(qs), matrix(ks), matrix(vs), s.num_heads, s.num_kv_heads, key_offsets, runs, s.scale,
                                    matrix(out.o), want_lse ? out.lse.data_ptr<float>() : nullptr);
  return out;
}

AttentionGradients attention_gradients(const AttentionShape& s, const std::vector<int64_t>& key_offsets,
                                       const std::vector<kernels::QueryRun>& runs, const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, const AttentionValues& values, const at::Tensor& d_o,
                                       at::ScalarType kv_dtype) {
  if (!values.lse.defined()) {
    at::AutoGradMode guard(true);
    std::vector<at::Tensor> in{q.detach(), k.detach(), v.detach()};
    for (at::Tensor& t : in) t.requires_grad_(true);
    const auto g = torch::autograd::grad({composed(s, key_offsets, runs, in[0], in[1], in[2])}, in, {d_o});
    return {g[0], g[1].to(kv_dtype), g[2].to(kv_dtype)};
  }
  AttentionGradients g{at::empty_like(q), at::empty(k.sizes(), k.options().dtype(kv_dtype)),
                       at::empty(v.sizes(), v.options().dtype(kv_dtype))};
  kernels::attention_packed_backward(matrix(d_o), matrix(q), matrix(k), matrix(v), matrix(values.o), values.lse.data_ptr<float>(),
                                     s.num_heads, s.num_kv_heads, key_offsets, runs, s.scale, matrix(g.dq), matrix(g.dk),
                                     matrix(g.dv));
  return g;
}

at::Tensor PackedAttention::attend(int64_t, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  if (!use_kernels(q, kAttentionOp)) return composed(shape_, offsets_, runs_, q, k, v);
  AttentionValues values = attention_values(shape_, offsets_, runs_, q, k, v, needs_grad({q, k, v}, {}));
  at::Tensor o = values.o;
  values.o = o.detach();
  at::Tensor qs = q.detach(), ks = k.detach(), vs = v.detach();
  return record({q, k, v}, {}, o, [s = shape_, offsets = offsets_, runs = runs_, qs, ks, vs, values](const Grads& g) -> Grads {
    AttentionGradients d = attention_gradients(s, offsets, runs, qs, ks, vs, values, g[0].contiguous(), ks.scalar_type());
    return {d.dq, d.dk, d.dv};
  });
}

at::Tensor PagedAttention::attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  WEFT_CHECK(!needs_grad({q, k, v}, {}), "the paged cache records no gradients");
  if (!q.is_cpu()) return attend(layer, q.to(at::kCPU), k.to(at::kCPU), v.to(at::kCPU)).to(q.device());
  at::Tensor o = at::empty_like(q);
  void* cache = layer_caches_.at(static_cast<size_t>(layer));
  kernels::write_kv(matrix(k), matrix(v), sequences_, kv_, cache);
  kernels::attention_forward(matrix(q), sequences_, kv_, cache, shape_.scale, matrix(o), nullptr);
  return o;
}

}  // namespace weft::nn
