#include "weft/mesh/token_sharing.h"

#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft {
namespace {

using Pieces = std::vector<ContextPiece>;

TEST(ContextSplit, EveryPositionHasOneRank) {
  const std::vector<int64_t> offsets = {0, 1, 1, 3, 10, 11, 75, 203};
  for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous})
    for (int64_t cp = 1; cp <= 9; ++cp) {
      std::vector<int> owners(static_cast<size_t>(offsets.back()));
      int64_t least = offsets.back(), most = 0;
      for (int64_t rank = 0; rank < cp; ++rank) {
        int64_t tokens = 0;
        ContextPiece before{-1, 0, 0};
        for (const ContextPiece& p : context_pieces(offsets, cp, rank, split)) {
          EXPECT_GT(p.size(), 0);
          EXPECT_TRUE(before.sequence < p.sequence || (before.sequence == p.sequence && before.end < p.begin));
          before = p;
          for (int64_t at = p.begin; at < p.end; ++at)
            ++owners[static_cast<size_t>(offsets[static_cast<size_t>(p.sequence)] + at)];
          tokens += p.size();
        }
        least = std::min(least, tokens), most = std::max(most, tokens);
      }
      for (const int count : owners) EXPECT_EQ(count, 1);
      EXPECT_LE(most - least, 2 * static_cast<int64_t>(offsets.size()))
          << cp;  // a part of a sequence is at most one token longer than another
    }
}

TEST(ContextSplit, Examples) {
  const std::vector<int64_t> offsets = {0, 8, 9};
  EXPECT_EQ(context_pieces(offsets, 2, 0, ContextSplit::kZigzag), (Pieces{{0, 0, 2}, {0, 6, 8}, {1, 0, 1}}));
  EXPECT_EQ(context_pieces(offsets, 2, 1, ContextSplit::kZigzag), (Pieces{{0, 2, 6}}));
  EXPECT_EQ(context_pieces(offsets, 2, 1, ContextSplit::kContiguous), (Pieces{{0, 4, 8}, {1, 0, 1}}));
  EXPECT_EQ(context_pieces(offsets, 1, 0, ContextSplit::kZigzag), (Pieces{{0, 0, 8}, {1, 0, 1}}));
  EXPECT_TRUE(context_pieces(std::vector<int64_t>{0}, 3, 1, ContextSplit::kZigzag).empty());
}

// Pairs of query and key under a causal mask: zigzag gives every rank as many, contiguous gives the last one most.
TEST(ContextSplit, ZigzagBalancesTheWork) {
  const std::vector<int64_t> offsets = {0, 800};
  const auto pairs = [&](int64_t rank, ContextSplit split) {
    int64_t n = 0;
    for (const ContextPiece& p : context_pieces(offsets, 4, rank, split))
      for (int64_t at = p.begin; at < p.end; ++at) n += at + 1;
    return n;
  };
  EXPECT_EQ(pairs(0, ContextSplit::kZigzag), pairs(3, ContextSplit::kZigzag));
  EXPECT_GT(pairs(3, ContextSplit::kContiguous), 6 * pairs(0, ContextSplit::kContiguous));
}

TEST(ContextSplit, SequencesOfRows) {
  const std::vector<int64_t> offsets = {0, 2, 2, 3};
  EXPECT_EQ(sequence_of(offsets, 0), 0);
  EXPECT_EQ(sequence_of(offsets, 1), 0);
  EXPECT_EQ(sequence_of(offsets, 2), 2);  // not the empty one
}

TEST(ContextSplit, Names) {
  EXPECT_EQ(parse_context_split("contiguous", "actor.cp_split"), ContextSplit::kContiguous);
  EXPECT_THROW((void)parse_context_split("ring", "actor.cp_split"), UsageError);
}

}  // namespace
}  // namespace weft
