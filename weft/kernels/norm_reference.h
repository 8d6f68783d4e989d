#pragma once
// Scalar loops of norm.h's rules: the oracle of its tests, equal bit for bit.

#include "weft/kernels/matrix.h"

namespace weft::kernels::reference {

void rms_norm_forward(ConstMatrix x, const float* weight, float eps, Matrix y, float* rstd);
void rms_norm_backward(ConstMatrix dy, ConstMatrix x, const float* weight, const float* rstd, float* dx, bool accumulate,
                       float* dweight);

}  // namespace weft::kernels::reference
