#pragma once
// What stands between the halves of a column- and row-parallel pair (Megatron's f and g), and what gives the ranks of a tp axis
// slices of rows. All are collective over `ranks`, forward or backward, also with no rows; tensors are contiguous and on the CPU.
// With one rank each is the identity. Every rank of the axis has the same x where it says "whole". Legend: T tokens, H hidden.

#include <ATen/core/Tensor.h>

#include <utility>

#include "weft/comm/communicator.h"
#include "weft/nn/parameter.h"

namespace weft {

// Before column-parallel products: whole x as it is; its gradient is the sum of the ranks' (in fp32, rounded once).
at::Tensor copy_to_ranks(const at::Tensor& x, const Communicator& ranks);
// After a row-parallel product: the sum of the ranks' fp32 terms by the binary tree (docs/numerics.md, rule 3), whole; the
// gradient as it is.
at::Tensor sum_over_ranks(const at::Tensor& terms, const Communicator& ranks);
// [begin, end) of the rows that a rank of several has: ceil chunks.
std::pair<int64_t, int64_t> slice_of_rows(int64_t rows, int64_t ranks, int64_t rank);
// Ceil chunks of the rows of whole x [T, ...]: this rank's; gradients are gathered to whole again.
at::Tensor slice_rows(const at::Tensor& x, const Communicator& ranks);
// The inverse: whole [rows, ...] from every rank's slice_rows of it; of the gradient each takes its slice.
at::Tensor gather_rows(const at::Tensor& slice, int64_t rows, const Communicator& ranks);

// Sequence parallelism (arXiv:2205.05198): between the blocks each rank has slice_rows of the rows.
// Before column-parallel products: whole [rows, ...] from the slices; its gradient is the sum of the ranks' (in fp32, rounded
// once), of which each takes its slice.
at::Tensor gather_for_columns(const at::Tensor& slice, int64_t rows, const Communicator& ranks);
// After a row-parallel product: as sum_over_ranks, of which each rank takes its slice.
at::Tensor sum_to_slices(const at::Tensor& terms, const Communicator& ranks);

// y [T, N] fp32 = x w^T + bias where `weight` holds this rank's columns, at whole leaves, of [N, K] (the bias is whole): as
// nn::linear with Chain::kLeaves on one rank, bit for bit. `slices`: this rank's slice of y's rows.
at::Tensor row_parallel_linear(const at::Tensor& x, nn::Parameter& weight, nn::Parameter* bias, const Communicator& tp,
                               bool slices = false);

}  // namespace weft
