#pragma once
// Scalar loop of rope.h's rule: the oracle of its tests, equal bit for bit.

#include "weft/kernels/matrix.h"

namespace weft::kernels::reference {

void rope_apply(ConstMatrix x, int64_t heads, const float* cos, const float* sin, int sign, Matrix y);

}  // namespace weft::kernels::reference
