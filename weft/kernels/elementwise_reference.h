#pragma once
// Scalar loops of elementwise.h's rules: the oracle of its tests, equal bit for bit.

#include <span>

#include "weft/kernels/matrix.h"

namespace weft::kernels::reference {

void swiglu_forward(ConstMatrix gate, ConstMatrix up, Matrix y);
void swiglu_backward(ConstMatrix dy, ConstMatrix gate, ConstMatrix up, Matrix dgate, Matrix dup);
void embedding_backward(std::span<const int32_t> ids, ConstMatrix dy, float* dtable);

}  // namespace weft::kernels::reference
