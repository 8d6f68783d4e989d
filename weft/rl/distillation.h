#pragma once
// On-policy distillation from a frozen teacher with the same tokenizer, as an addition to the advantages:
// A + coef * (teacher log-prob - old log-prob) on every token that counts (the signed k1 estimate of the reverse KL as a reward).

#include <span>
#include <vector>

#include "weft/rl/rows.h"

namespace weft {

// Per-token spans. With advantages of 0 this is pure distillation. 0 outside the mask, where nothing is read.
std::vector<double> distillation_advantages(const PackedRows& rows, std::span<const double> advantages,
                                            std::span<const double> teacher_log_probs, std::span<const double> old_log_probs,
                                            double coef);

}  // namespace weft
