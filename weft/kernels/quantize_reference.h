#pragma once
// Scalar loops of quantize.h's rules: the oracle of its tests and of those of the refit, equal bit for bit.

#include <cstdint>

namespace weft::kernels::reference {

float max_magnitude(const float* x, int64_t n);
void quantize(const float* x, float scale, int8_t* q, int64_t n);

}  // namespace weft::kernels::reference
