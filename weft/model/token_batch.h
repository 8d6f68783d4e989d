#pragma once
// Tokens of several sequences packed one after another, without padding: what a forward reads. Legend: T tokens, S sequences.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace weft {

// Positions [begin, end) of a sequence whose tokens from its start are `tokens` (so that earlier ones can be read).
struct SequenceSpan {
  std::span<const int32_t> tokens;
  int64_t begin = 0, end = 0;
};

struct TokenBatch {
  at::Tensor ids;        // [T] int32
  at::Tensor positions;  // [T] int32, absolute in the sequence
  at::Tensor history;    // [T, h] int32: the 1, 2, ..., h tokens before, 0 before the start; undefined when h = 0
  std::vector<int64_t> offsets;  // [S+1]

  int64_t num_tokens() const { return offsets.back(); }
  static TokenBatch pack(std::span<const SequenceSpan> sequences, int64_t history);
};

}  // namespace weft
