#pragma once
// Scalar loops of attention.h's rules: the oracle of its tests, equal bit for bit.

#include "weft/kernels/attention.h"

namespace weft::kernels::reference {

// first_block: keys of the first softmax block of every row; anything but 64 breaks the contract, for the inverse test.
void attention_packed_forward(ConstMatrix q, ConstMatrix k, ConstMatrix v, int64_t num_heads, int64_t num_kv_heads,
                              std::span<const int64_t> offsets, float scale, Matrix o, float* lse, int64_t first_block = 64);
void attention_packed_backward(ConstMatrix d_o, ConstMatrix q, ConstMatrix k, ConstMatrix v, ConstMatrix o, const float* lse,
                               int64_t num_heads, int64_t num_kv_heads, std::span<const int64_t> offsets, float scale, Matrix dq,
                               Matrix dk, Matrix dv);

}  // namespace weft::kernels::reference
