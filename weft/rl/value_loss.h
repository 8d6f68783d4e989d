#pragma once
// Clipped value loss of PPO, as verl: 0.5 * aggregate(max((v - R)^2, (clip(v, old - c, old + c) - R)^2)).

#include <span>
#include <vector>

#include "weft/rl/aggregation.h"
#include "weft/rl/rows.h"

namespace weft {

struct ValueLossResult {
  double loss = 0;
  std::vector<double> grad;  // per token, d loss / d value
  double clipped = 0;        // tokens where the clipped square is the larger one (verl vf_clipfrac)
  double tokens = 0;
};

// Per-token spans: values (current), old_values, returns. cliprange above 0. Values outside the mask are never read.
ValueLossResult value_loss(const PackedRows& rows, std::span<const double> values, std::span<const double> old_values,
                           std::span<const double> returns, double cliprange, const Aggregation& aggregation);

}  // namespace weft
