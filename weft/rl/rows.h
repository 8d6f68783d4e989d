#pragma once
// How every function of weft/rl sees a batch: rows (trajectories) of response tokens, packed one after another without padding.
// Per-token spans have rows.tokens() entries, per-row spans rows.count(). Spans are borrowed, never kept. All values are double;
// log-probs come from the fp32 kernels and are widened by the caller (widen). Nothing here knows meshes, threads or
// micro-batches: results of the micro-batches of a step add up to the result of the whole batch, because denominators are passed
// in.

#include <cstdint>
#include <span>
#include <vector>

namespace weft {

// verl clamps log-ratios here; the gradient is 0 beyond.
inline constexpr double kLogRatioLimit = 20.0;

struct PackedRows {
  std::span<const int64_t>
      offsets;                    // count() + 1 entries, from 0, not decreasing; row i holds tokens [offsets[i], offsets[i + 1])
  std::span<const uint8_t> mask;  // per token: 1 counts, 0 (tool output, rejected token) does not; a row may have none that count

  int64_t count() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t tokens() const { return static_cast<int64_t>(mask.size()); }
};

// Our own invariants of `rows`; every public function of weft/rl starts with it. InternalError when they do not hold.
void check_rows(const PackedRows& rows);

// InternalError unless a per-token (or per-row) span has the expected size.
void check_size(const char* name, size_t size, int64_t expected);

// Number of tokens that count in row `row`.
int64_t row_tokens(const PackedRows& rows, int64_t row);

// Per-row values repeated on the row's tokens that count; 0 elsewhere.
std::vector<double> spread_to_tokens(const PackedRows& rows, std::span<const double> per_row);

std::vector<double> widen(std::span<const float> values);

}  // namespace weft
