#pragma once
// Scalar loops of logprob.h's rules: the oracle of its tests, equal bit for bit.

#include "weft/kernels/logprob.h"

namespace weft::kernels::reference {

// tree = false merges the leaves left to right, which the contract forbids: for the inverse test.
float log_sum_exp(const float* z, int64_t vocab, bool tree = true);
// logits [R, V] are given (the product has its own reference).
void logprob_forward(const float* logits, int64_t vocab, std::span<const HeadRow> rows, float* log_probs, float* lse);

}  // namespace weft::kernels::reference
