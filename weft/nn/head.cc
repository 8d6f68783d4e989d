#include "weft/nn/head.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include "weft/nn/autograd.h"
#include "weft/nn/view.h"

namespace weft::nn {
namespace {

HeadOutput composed(const at::Tensor& x, Parameter& weight, const HeadRows& rows, bool want_entropy) {
  const int64_t r = x.size(0), vocab = weight.compute_shape()[0];
  at::Tensor target = at::empty({r}, at::kLong), inv_t = at::empty({r, 1}, at::kFloat);
  at::Tensor bias = at::zeros({r, vocab}, at::kFloat), removed = at::zeros({r, vocab}, at::kBool);
  for (int64_t i = 0; i < r; ++i) {
    const kernels::HeadRow& row = rows.rows[static_cast<size_t>(i)];
    target.data_ptr<int64_t>()[i] = row.target;
    inv_t.data_ptr<float>()[i] = row.inv_temperature;
    if (row.bias)
      for (size_t j = 0; j < row.bias->ids.size(); ++j) bias[i][row.bias->ids[j]] = row.bias->values[j];
    if (row.kept && !row.kept->all) {
      removed[i].fill_(true);
      for (int32_t id : row.kept->ids) removed[i][id] = false;
    }
  }
  at::Tensor z = (at::matmul(x, weight.leaf().t()).to(at::kFloat) + bias.to(x.device())) * inv_t.to(x.device());
  z = z.masked_fill(removed.to(x.device()), -INFINITY);
  at::Tensor lp = at::log_softmax(z, -1);
  at::Tensor chosen = lp.gather(1, target.to(x.device()).unsqueeze(1)).squeeze(1);
  at::Tensor entropy;
  if (want_entropy) entropy = -(lp.exp() * lp.masked_fill(removed.to(x.device()), 0)).sum(-1);
  return {chosen, entropy};
}

}  // namespace

HeadOutput head_log_probs(const at::Tensor& x, Parameter& weight, std::shared_ptr<const HeadRows> rows, bool want_entropy) {
  WEFT_CHECK(static_cast<int64_t>(rows->rows.size()) == x.size(0), "{} rows asked of {}", rows->rows.size(), x.size(0));
  const int64_t vocab = weight.compute_shape()[0];
  for (const kernels::HeadRow& row : rows->rows)
    WEFT_CHECK(row.target >= 0 && row.target < vocab, "target {} outside the vocabulary of {}", row.target, vocab);
  if (!use_kernels(x, kHeadOp)) return composed(x, weight, *rows, want_entropy);
  const int64_t r = x.size(0);
  at::Tensor lp = at::empty({r}, fp32()), lse = at::empty({r}, fp32()), entropy;
  if (want_entropy) entropy = at::empty({r}, fp32());
  at::Tensor xs = x.detach();
  kernels::head_logprob_forward(matrix(xs), weight.packed(), rows->rows, lp.data_ptr<float>(),
                                want_entropy ? entropy.data_ptr<float>() : nullptr, lse.data_ptr<float>());
  Parameter* w = &weight;
  auto backward = [xs, lse, rows, w](const Grads& g) -> Grads {
    at::Tensor dlp = g[0].defined() ? g[0].contiguous() : at::zeros({xs.size(0)}, fp32());
    at::Tensor dent = g.size() > 1 && g[1].defined() ? g[1].contiguous() : at::Tensor();
    at::Tensor dx = at::empty_like(xs);
    kernels::head_logprob_backward(matrix(xs), w->packed(), matrix(w->compute()), rows->rows, lse.data_ptr<float>(),
                                   dlp.data_ptr<float>(), dent.defined() ? dent.data_ptr<float>() : nullptr, matrix(dx),
                                   w->trainable() ? w->grad_data() : nullptr);
    if (w->trainable()) w->notify_grad();
    return {dx};
  };
  if (!want_entropy) return {record({x}, {w}, lp, backward), {}};
  auto outs = record({x}, {w}, std::vector<at::Tensor>{lp, entropy}, backward);
  return {outs[0], outs[1]};
}

}  // namespace weft::nn
