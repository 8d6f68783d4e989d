#include "weft/nn/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>

#include "weft/nn/autograd.h"
#include "weft/nn/view.h"

namespace weft::nn {
namespace {

// One sequence at a time: softmax(q k^T * scale + causal) v, in fp32.
at::Tensor composed(const AttentionShape& s, const std::vector<int64_t>& offsets, const at::Tensor& q, const at::Tensor& k,
                    const at::Tensor& v) {
  std::vector<at::Tensor> parts;
  const int64_t group = s.num_heads / s.num_kv_heads;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const int64_t begin = offsets[i], n = offsets[i + 1] - begin;
    auto heads = [&](const at::Tensor& t, int64_t h) {
      return t.narrow(0, begin, n).reshape({n, h, s.head_dim}).transpose(0, 1).to(at::kFloat);
    };
    at::Tensor kk = heads(k, s.num_kv_heads).repeat_interleave(group, 0), vv = heads(v, s.num_kv_heads).repeat_interleave(group, 0);
    at::Tensor scores = at::matmul(heads(q, s.num_heads), kk.transpose(1, 2)) * s.scale;
    at::Tensor mask = at::ones({n, n}, q.options().dtype(at::kBool)).triu(1);
    at::Tensor p = at::softmax(scores.masked_fill(mask, -INFINITY), -1);
    parts.push_back(at::matmul(p, vv).transpose(0, 1).reshape({n, s.num_heads * s.head_dim}).to(q.scalar_type()));
  }
  return parts.empty() ? q.clone() : at::cat(parts, 0);
}

}  // namespace

at::Tensor PackedAttention::attend(int64_t, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  if (!use_kernels(q, kAttentionOp)) return composed(shape_, offsets_, q, k, v);
  at::Tensor o = at::empty_like(q);
  const bool grad = needs_grad({q, k, v}, {});
  at::Tensor lse = grad ? at::empty({q.size(0), shape_.num_heads}, fp32()) : at::Tensor();
  kernels::attention_packed_forward(matrix(q), matrix(k), matrix(v), shape_.num_heads, shape_.num_kv_heads, offsets_, shape_.scale,
                                    matrix(o), grad ? lse.data_ptr<float>() : nullptr);
  at::Tensor qs = q.detach(), ks = k.detach(), vs = v.detach(), os = o.detach();
  return record({q, k, v}, {}, o, [s = shape_, offsets = offsets_, qs, ks, vs, os, lse](const Grads& g) -> Grads {
    const at::Tensor d_o = g[0].contiguous();
    at::Tensor dq = at::empty_like(qs), dk = at::empty_like(ks), dv = at::empty_like(vs);
    kernels::attention_packed_backward(matrix(d_o), matrix(qs), matrix(ks), matrix(vs), matrix(os), lse.data_ptr<float>(),
                                       s.num_heads, s.num_kv_heads, offsets, s.scale, matrix(dq), matrix(dk), matrix(dv));
    return {dq, dk, dv};
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
