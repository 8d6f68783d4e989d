#pragma once
// How the ranks of the cp and tp axes share a micro-batch's tokens. Context parallelism cuts the positions of each packed
// sequence by itself, so that every rank of cp has about as many tokens, and attends to about as many keys, whatever the lengths.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft {

enum class ContextSplit {
  kZigzag,     // 2*cp parts, rank r has parts r and 2*cp-1-r: equal work under a causal mask (Llama 3, arXiv:2407.21783, 3.3.2)
  kContiguous  // cp parts: the last rank attends to most
};
// "zigzag", "contiguous"; UsageError for others, beginning with `where`.
ContextSplit parse_context_split(const std::string& text, const std::string& where);

struct TokenSharing {
  ContextSplit context_split = ContextSplit::kZigzag;
  bool sequence_parallel = false;  // between the blocks each tp rank has a slice of the rows (arXiv:2205.05198)
};

// Positions [begin, end) of a sequence.
struct ContextPiece {
  int64_t sequence = 0, begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const ContextPiece&) const = default;
};

// The sequence that a row of the packed sequences is of, offsets [S+1].
int64_t sequence_of(std::span<const int64_t> offsets, int64_t row);

// The pieces of rank `rank` of `cp`, by sequence, then ascending; never empty, and neighbours are joined. offsets [S+1] of the
// packed sequences. Part i of p has positions [i*n/p, (i+1)*n/p) of n: a sequence shorter than the parts leaves ranks without
// any.
std::vector<ContextPiece> context_pieces(std::span<const int64_t> offsets, int64_t cp, int64_t rank, ContextSplit split);

}  // namespace weft
