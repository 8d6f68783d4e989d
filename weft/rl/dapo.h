#pragma once
// DAPO beside its loss (vanilla with clip-higher and token-mean): soft overlong punishment and dynamic sampling.

#include <cstdint>
#include <span>
#include <vector>

namespace weft {

// min(-(length - (max_length - buffer)) / buffer * penalty_factor, 0), added to the reward: 0 up to max_length - buffer, then
// down to -penalty_factor at max_length. As verl, no floor beyond (TRL has one). Lengths in tokens. ValueError unless 0 < buffer
// <= max_length and penalty_factor >= 0.
double soft_overlong_punishment(int64_t length, int64_t max_length, int64_t buffer, double penalty_factor = 1.0);

// Group filter on the raw metric (before shaping and KL): per row 1 if its group is kept. A group of one is kept, as in verl; a
// larger one only if two of its metrics differ (compared exactly, so rounding of a mean plays no part). NaN (no metric) differs
// from nothing.
std::vector<uint8_t> keep_informative_groups(std::span<const double> metric, std::span<const int64_t> groups);

// Decides how often to generate: kept groups are collected over generation batches until `wanted` are there, at most
// max_batches (0 = no bound). What was collected is never thrown away, also when the bound is reached.
class DynamicSampling {
 public:
  // ValueError unless wanted > 0 and max_batches >= 0.
  DynamicSampling(int64_t wanted_groups, int64_t max_batches);

  enum class Next { kEnough, kGenerate, kBoundReached };

  // After one generation batch that gave `kept` of `generated` groups.
  Next add(int64_t kept, int64_t generated);

  int64_t kept() const { return kept_; }
  int64_t generated() const { return generated_; }
  int64_t batches() const { return batches_; }

 private:
  int64_t wanted_;
  int64_t max_batches_;
  int64_t kept_ = 0;
  int64_t generated_ = 0;
  int64_t batches_ = 0;
};

}  // namespace weft
