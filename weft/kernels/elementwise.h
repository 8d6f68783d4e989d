#pragma once
// Row-wise and element-wise kernels. No FMA, no libm; each element depends on its own inputs only.

#include <cstdint>
#include <span>

#include "weft/kernels/matrix.h"

namespace weft::kernels {

// Conversions; src and dst may not overlap.
void convert(const float* src, bf16* dst, int64_t n);
void convert(const bf16* src, float* dst, int64_t n);

// SwiGLU: y = (g / (1 + exp(-g))) * u, rows [M, I] of g and u (fp32, strided), y fp32 or bf16.
void swiglu_forward(ConstMatrix gate, ConstMatrix up, Matrix y);
// dy fp32 or bf16; dgate, dup fp32 or bf16.
void swiglu_backward(ConstMatrix dy, ConstMatrix gate, ConstMatrix up, Matrix dgate, Matrix dup);

// y = a + b (fp32); y may be a.
void add(const float* a, const float* b, float* y, int64_t n);
// y += x, x fp32 or bf16.
void accumulate(ConstMatrix x, float* y);

// Rows of a table [V, H] (fp32 or bf16) into y [T, H] fp32. ids are checked by the caller.
void embedding_forward(std::span<const int32_t> ids, ConstMatrix table, float* y);
// dtable [V, H] += dy [T, H]; rows of one id are added in ascending token order on any number of threads.
void embedding_backward(std::span<const int32_t> ids, ConstMatrix dy, float* dtable, int64_t vocab);

// Vectors of any length: y[i] = exp(x[i]) and log(x[i]) of the contract (exp(0) = 1; fp32, a few ulp; one source for all targets).
void vec_exp(const float* x, float* y, int64_t n);
void vec_log(const float* x, float* y, int64_t n);

}  // namespace weft::kernels
