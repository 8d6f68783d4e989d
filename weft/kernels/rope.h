#pragma once
// Rotary embedding, the half-split form of Hugging Face models: y[i] = x[i]*cos - x[i+D/2]*sin, y[i+D/2] = x[i+D/2]*cos + x[i]*sin
// (each product rounded, then one add: no FMA). Angle = fp32(position) * inv_freq[i] in fp32; cos and sin by det_cos/det_sin in double,
// times the family's attention factor, rounded to fp32 (docs/numerics.md, rules 1 and 7).

#include <cstdint>
#include <span>

#include "weft/kernels/matrix.h"

namespace weft::kernels {

// cos, sin [T, D/2] for these positions.
void rope_table(std::span<const int32_t> positions, std::span<const float> inv_freq, double attention_factor, float* cos, float* sin);

// x, y [T, heads*D]: x fp32 (or bf16 in the backward), y fp32 or bf16. sign = -1 applies the transpose (the backward).
void rope_apply(ConstMatrix x, int64_t heads, const float* cos, const float* sin, int sign, Matrix y);

}  // namespace weft::kernels
