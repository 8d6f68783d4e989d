#pragma once
// The oracles of gemm.h: scalar std::fma loops of the same order, equal bit for bit. Single-threaded and slow; shapes as there.
// `order` breaks one rule at a time, so that tests can show that each rule is seen.

#include <span>

#include "weft/kernels/gemm.h"

namespace weft::kernels {

struct Order {
  bool reversed = false;            // chains descend
  bool even_first = false;          // pairs of bf16 x bf16 go even first
  bool ceil_leaves = false;         // leaves of ceil(K / 8) instead of leaf_begin
  bool scale_last = false;          // the tree of int8 leaves is scaled instead of each leaf
  bool left_to_right = false;       // leaves summed 0 + 1 + 2 + ... instead of by the tree
  int64_t input_grad_chain = 512;   // elements of N
  int64_t weight_grad_chain = 256;  // tokens
};

// w: [N, K] row-major, any stride; int8 with the scales [N] of its rows.
void gemm_reference(ConstMatrix x, ConstMatrix w, const float* bias, Matrix y, Chain chain = Chain::kSingle, Order order = {},
                    const float* scales = nullptr);
void gemm_input_grad_reference(ConstMatrix dy, ConstMatrix w, Matrix dx, bool accumulate = false, Order order = {});
void gemm_weight_grad_reference(ConstMatrix dy, ConstMatrix x, float* dw, Order order = {});
void gemm_bias_grad_reference(ConstMatrix dy, float* dbias);

// Grouped: w contiguous [E, N, K].
void grouped_gemm_reference(ConstMatrix x, const void* w, DType w_dtype, std::span<const int64_t> offsets, Matrix y,
                            const float* scales = nullptr);
void grouped_gemm_input_grad_reference(ConstMatrix dy, const void* w, DType w_dtype, std::span<const int64_t> offsets, Matrix dx);
void grouped_gemm_weight_grad_reference(ConstMatrix dy, ConstMatrix x, std::span<const int64_t> offsets, float* dw);

}  // namespace weft::kernels
