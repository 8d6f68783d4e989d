#pragma once
// Scalar loops of moe.h's rules: the oracle of its tests, equal bit for bit.

#include "weft/kernels/moe.h"

namespace weft::kernels::reference {

void router_select(const float* logits, int64_t tokens, int64_t experts, const RouterParams& params, int32_t* ids);
void router_gates(const float* logits, int64_t tokens, int64_t experts, const RouterParams& params, const int32_t* ids,
                  float* gates);
void combine_forward(ConstMatrix out, const Permutation& p, int64_t top_k, const float* gates, float* y);
void combine_backward(const float* dy, ConstMatrix out, const Permutation& p, int64_t top_k, const float* gates, Matrix dout,
                      float* dgates);

}  // namespace weft::kernels::reference
