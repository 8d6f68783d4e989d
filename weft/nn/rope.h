#pragma once
// Rotary position embedding.

#include <ATen/core/Tensor.h>

#include <vector>

namespace weft::nn {

struct RopeTable {
  at::Tensor cos, sin;  // [T, D/2] fp32
};
// positions [T] int32 (CPU); inv_freq [D/2].
RopeTable rope_table(const at::Tensor& positions, const std::vector<float>& inv_freq, double attention_factor, const at::Device& device);

// x [T, heads*D] fp32 -> `out` (fp32 or bf16, rounded once).
at::Tensor rope(const at::Tensor& x, int64_t heads, const RopeTable& table, at::ScalarType out);

}  // namespace weft::nn
