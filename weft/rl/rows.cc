#include "weft/rl/rows.h"

#include "weft/base/error.h"

namespace weft {

void check_rows(const PackedRows& rows) {
  WEFT_CHECK(!rows.offsets.empty() && rows.offsets[0] == 0, "packed rows need offsets that start with 0");
  for (size_t i = 1; i < rows.offsets.size(); ++i) {
    WEFT_CHECK(rows.offsets[i] >= rows.offsets[i - 1], "offsets decrease at row {}", i - 1);
  }
  check_size("mask", rows.mask.size(), rows.offsets.back());
}

void check_size(const char* name, size_t size, int64_t expected) {
  WEFT_CHECK(static_cast<int64_t>(size) == expected, "{} has {} entries, expected {}", name, size, expected);
}

int64_t row_tokens(const PackedRows& rows, int64_t row) {
  int64_t n = 0;
  for (int64_t t = rows.offsets[row]; t < rows.offsets[row + 1]; ++t) n += rows.mask[t] != 0;
  return n;
}

std::vector<double> spread_to_tokens(const PackedRows& rows, std::span<const double> per_row) {
  check_rows(rows);
  check_size("per-row values", per_row.size(), rows.count());
  std::vector<double> out(rows.tokens(), 0.0);
  for (int64_t i = 0; i < rows.count(); ++i) {
    for (int64_t t = rows.offsets[i]; t < rows.offsets[i + 1]; ++t) {
      if (rows.mask[t]) out[t] = per_row[i];
    }
  }
  return out;
}

std::vector<double> widen(std::span<const float> values) { return {values.begin(), values.end()}; }

}  // namespace weft
