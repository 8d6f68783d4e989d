#include "weft/rl/distillation.h"

namespace weft {

std::vector<double> distillation_advantages(const PackedRows& rows, std::span<const double> advantages,
                                            std::span<const double> teacher_log_probs, std::span<const double> old_log_probs,
                                            double coef) {
  check_rows(rows);
  check_size("advantages", advantages.size(), rows.tokens());
  check_size("teacher_log_probs", teacher_log_probs.size(), rows.tokens());
  check_size("old_log_probs", old_log_probs.size(), rows.tokens());
  std::vector<double> out(rows.tokens(), 0.0);
  for (int64_t t = 0; t < rows.tokens(); ++t) {
    if (rows.mask[t]) out[t] = advantages[t] + coef * (teacher_log_probs[t] - old_log_probs[t]);
  }
  return out;
}

}  // namespace weft
