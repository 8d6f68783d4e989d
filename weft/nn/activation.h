#pragma once
// SwiGLU (arXiv:2002.05202): silu(gate) * up.

#include <ATen/core/Tensor.h>

namespace weft::nn {

// gate, up [M, I] fp32 -> [M, I] `out`.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, at::ScalarType out);
// gate_up [M, 2I] fp32, the gate half first.
at::Tensor swiglu_fused(const at::Tensor& gate_up, at::ScalarType out);

}  // namespace weft::nn
