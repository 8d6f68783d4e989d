#include "weft/nn/embedding.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>

#include "weft/kernels/elementwise.h"
#include "weft/nn/autograd.h"
#include "weft/nn/view.h"

namespace weft::nn {

at::Tensor embedding(const at::Tensor& ids, Parameter& table) {
  const int64_t vocab = table.compute_shape()[0], hidden = table.compute_shape()[1];
  const auto tokens = ints(ids);
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= vocab)
      throw ValueError(fmt::format("{}: token id {} at position {} is outside the vocabulary of {}", table.name(), tokens[i], i, vocab));
  if (!use_kernels(table.compute(), kEmbeddingOp)) {
    const at::Tensor index = ids.to(at::kLong).to(table.compute().device());
    return at::embedding(table.leaf(), index).to(at::kFloat);
  }
  at::Tensor y = at::empty({ids.size(0), hidden}, fp32());
  kernels::embedding_forward(tokens, matrix(table.compute()), y.data_ptr<float>());
  Parameter* p = &table;
  return record({}, {p}, y, [ids, p, vocab](const Grads& g) -> Grads {
    kernels::embedding_backward(ints(ids), matrix(g[0].contiguous()), p->grad_data(), vocab);
    p->notify_grad();
    return {};
  });
}

}  // namespace weft::nn
