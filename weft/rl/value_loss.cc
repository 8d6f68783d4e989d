#include "weft/rl/value_loss.h"

#include <algorithm>

namespace weft {

ValueLossResult value_loss(const PackedRows& rows, std::span<const double> values, std::span<const double> old_values,
                           std::span<const double> returns, double cliprange, const Aggregation& aggregation) {
  check_rows(rows);
  check_size("values", values.size(), rows.tokens());
  check_size("old_values", old_values.size(), rows.tokens());
  check_size("returns", returns.size(), rows.tokens());
  ValueLossResult out;
  out.grad.assign(rows.tokens(), 0.0);
  for (int64_t i = 0; i < rows.count(); ++i) {
    const double weight = token_weight(aggregation, row_tokens(rows, i));
    for (int64_t t = rows.offsets[i]; t < rows.offsets[i + 1]; ++t) {
      if (!rows.mask[t]) continue;
      const double plain = values[t] - returns[t];
      const double bounded = std::clamp(values[t], old_values[t] - cliprange, old_values[t] + cliprange) - returns[t];
      const bool clipped = bounded * bounded > plain * plain;
      const double used = clipped ? bounded : plain;
      out.loss += 0.5 * weight * used * used;
      out.grad[t] = clipped ? 0.0 : weight * plain;
      out.clipped += clipped;
      out.tokens += 1;
    }
  }
  return out;
}

}  // namespace weft
