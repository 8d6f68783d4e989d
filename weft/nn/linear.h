#pragma once
// y [T, N] = x [T, K] W^T + b. Legend: T tokens, K inputs, N outputs, E experts.

#include <ATen/core/Tensor.h>

#include "weft/kernels/gemm.h"
#include "weft/nn/parameter.h"

namespace weft::nn {

// x fp32 or bf16 (contiguous rows), weight [N, K], bias [N] fp32 or null. The result is `out` (fp32 or bf16, rounded once).
// kLeaves for the products whose K a row-parallel cut divides (docs/numerics.md, rule 3). Differentiable in x, weight, bias.
at::Tensor linear(const at::Tensor& x, Parameter& weight, Parameter* bias, at::ScalarType out,
                  kernels::Chain chain = kernels::Chain::kSingle);

// The same with the columns of the weight that a row-parallel rank holds (x has the same ones): its part of the leaves' tree, [T, N] fp32,
// to be joined over ranks. The bias comes after.
at::Tensor linear_leaves(const at::Tensor& x, Parameter& weight, kernels::LeafSpan span);
// y [T, N] fp32 + bias [N].
at::Tensor add_bias(const at::Tensor& y, Parameter& bias);

// x in the weight's dtype: a bf16 weight takes bf16 rows (rounded here if x is fp32), an fp32 weight fp32 rows.
at::Tensor to_dtype(const at::Tensor& x, at::ScalarType dtype);

// a + b, both fp32 [T, H].
at::Tensor add(const at::Tensor& a, const at::Tensor& b);
// x * s, fp32.
at::Tensor scale(const at::Tensor& x, float s);

}  // namespace weft::nn
