#pragma once
// RMSNorm over the last dim.

#include <ATen/core/Tensor.h>

#include "weft/nn/parameter.h"

namespace weft::nn {

struct Normed {
  at::Tensor exact;    // fp32: routers and RoPE read it
  at::Tensor rounded;  // `dtype`; the same tensor as `exact` in fp32
};

// x [T, H] fp32, or [T, heads*D] with a weight of [D]: each run of weight.numel() elements is a row. Computes `exact` only when asked
// or when dtype is fp32.
Normed rms_norm(const at::Tensor& x, Parameter& weight, float eps, at::ScalarType dtype, bool want_exact);

}  // namespace weft::nn
