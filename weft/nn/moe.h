#pragma once
// The routed part of a MoE layer as ops. Legend: T tokens, E experts, k slots, H hidden, I expert width, R = T*k permuted rows.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "weft/kernels/moe.h"
#include "weft/nn/parameter.h"

namespace weft::nn {

// Router logits [T, E] fp32 from the unrounded norm output [T, H] and the fp32 router weight.
at::Tensor router_logits(const at::Tensor& x, Parameter& weight);

// ids [T, k] int32 by the live logits.
at::Tensor router_select(const at::Tensor& logits, const kernels::RouterParams& params);

// Gates [T, k] of these ids from the live logits; differentiable in the logits. Live and replayed routes take the same path.
at::Tensor router_gates(const at::Tensor& logits, const at::Tensor& ids, const kernels::RouterParams& params);

// sum over slots of gate * expert(x): permute, grouped gate_up [E, 2I, H], SwiGLU, grouped down [E, H, I], combine in slot order.
// x [T, H] in param_dtype, gates [T, k] fp32, ids [T, k] int32 -> [T, H] fp32. Differentiable in x, gates and the weights.
at::Tensor moe_experts(const at::Tensor& x, const at::Tensor& gates, const at::Tensor& ids, Parameter& gate_up, Parameter& down);

// Its parts, for who moves rows between ranks in the middle. Kernels only.
using PermutationPtr = std::shared_ptr<const kernels::Permutation>;
// Row r of the result [T*k, H] is the row of x that pair order[r] stands for.
at::Tensor permute_rows(const at::Tensor& x, const PermutationPtr& p, int64_t k);
// rows [R, H] sorted by expert, offsets [E+1] -> expert(row) [R, H] in the rows' dtype. E is that of the weights' compute_shape().
at::Tensor expert_mlp(const at::Tensor& rows, const std::shared_ptr<const std::vector<int64_t>>& offsets, Parameter& gate_up, Parameter& down);
// out [T*k, H] in the order of p -> [T, H] fp32: gate * out, summed in slot order.
at::Tensor combine_rows(const at::Tensor& out, const at::Tensor& gates, const PermutationPtr& p, int64_t k);

}  // namespace weft::nn
