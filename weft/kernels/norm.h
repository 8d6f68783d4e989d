#pragma once
// RMSNorm (arXiv:1910.07467), rows of H. y = (x * r) * w with r = 1 / sqrt(sum(x^2)/H + eps); sum of squares by 16 lane sums (FMA into
// lane i mod 16, ascending) and the lane tree (docs/numerics.md, rule 4). x, w fp32. Rows may be heads: [T*heads, head_dim].

#include "weft/kernels/matrix.h"

namespace weft::kernels {

// Writes y_f32 and/or y_bf16 (either may be null); rstd [rows] is kept for the backward, may be null.
void rms_norm_forward(ConstMatrix x, const float* weight, float eps, float* y_f32, bf16* y_bf16, float* rstd);

// dx [rows, H] (fp32, stored, or added when accumulate) and dweight [H] += (chains of 256 rows, added ascending). dy fp32 or bf16.
void rms_norm_backward(ConstMatrix dy, ConstMatrix x, const float* weight, const float* rstd, float* dx, bool accumulate, float* dweight);

}  // namespace weft::kernels
