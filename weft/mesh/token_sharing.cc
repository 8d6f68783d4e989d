#include "weft/mesh/token_sharing.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft {

ContextSplit parse_context_split(const std::string& text, const std::string& where) {
  if (text == "zigzag") return ContextSplit::kZigzag;
  if (text == "contiguous") return ContextSplit::kContiguous;
  throw UsageError(fmt::format("{} = \"{}\": expected zigzag or contiguous", where, text));
}

int64_t sequence_of(std::span<const int64_t> offsets, int64_t row) {
  return std::upper_bound(offsets.begin(), offsets.end(), row) - offsets.begin() - 1;
}

std::vector<ContextPiece> context_pieces(std::span<const int64_t> offsets, int64_t cp, int64_t rank, ContextSplit split) {
  WEFT_CHECK(cp >= 1 && 0 <= rank && rank < cp, "rank {} of {}", rank, cp);
  const bool zigzag = split == ContextSplit::kZigzag;
  const int64_t parts = zigzag ? 2 * cp : cp;
  std::vector<ContextPiece> out;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t n = offsets[s + 1] - offsets[s];
    const auto add = [&](int64_t part) {
      const ContextPiece p{static_cast<int64_t>(s), part * n / parts, (part + 1) * n / parts};
      if (p.size() == 0) return;
      if (!out.empty() && out.back().sequence == p.sequence && out.back().end == p.begin)
        out.back().end = p.end;
      else
        out.push_back(p);
    };
    add(rank);
    if (zigzag) add(parts - 1 - rank);
  }
  return out;
}

}  // namespace weft
