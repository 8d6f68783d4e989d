#pragma once
// Advantages from one outcome reward per row, relative to the row's group (the n samples of one prompt).
// Shapes: rewards, groups [rows]; result [rows], spread over tokens by spread_to_tokens. A NaN reward means "no reward" (dropped
// or not applicable): the row leaves its group's statistics and gets exactly 0. A group of one, or whose rewards are all equal,
// gets exactly 0 (verl gives a group of one its raw reward, and rounding gives equal rewards a small one). Rows of a group need
// not be neighbours; sums run in row order. Needs the whole step batch: groups must not be split.

#include <cstdint>
#include <span>
#include <vector>

namespace weft {

// (R - mean) / (std + eps), std with N - 1. norm_by_std = false: R - mean (Dr.GRPO).
std::vector<double> grpo_advantages(std::span<const double> rewards, std::span<const int64_t> groups, bool norm_by_std = true,
                                    double eps = 1e-6);

// R minus the mean of the others: n / (n - 1) * (R - mean).
std::vector<double> rloo_advantages(std::span<const double> rewards, std::span<const int64_t> groups);

// R minus the length-weighted mean sum(n R) / sum(n). lengths: tokens that count, per row.
std::vector<double> opo_advantages(std::span<const double> rewards, std::span<const int64_t> groups,
                                   std::span<const double> lengths);

// alpha * (R - mean), alpha = rows / rows with a reward that is not 0.
std::vector<double> gpg_advantages(std::span<const double> rewards, std::span<const int64_t> groups);

// R - mean, a group of one keeps R (what REINFORCE++ baseline whitens afterwards, as in verl). NaN rewards give 0.
std::vector<double> group_centred(std::span<const double> rewards, std::span<const int64_t> groups);

// Share of groups (with two or more valid rewards) whose rewards are all equal: they teach nothing.
double fraction_zero_std(std::span<const double> rewards, std::span<const int64_t> groups);

}  // namespace weft
