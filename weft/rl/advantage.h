#pragma once
// Advantage estimators by verl's names (algorithm.adv_estimator), one signature for all, per token of packed rows.
// Outcome estimators (grpo, rloo, opo, gpg, reinforce_plus_plus_baseline) read `rewards` [rows]; the others read `token_rewards`
// [tokens], of which a reward on a masked token is lost (as in verl): place an outcome reward with rewards_on_last_token.
// They need the whole step batch (groups and whitening span it). Values outside the mask are never read; results there are 0.
// A row without a reward also has to leave the loss: the caller clears its mask, which takes it out of every sum here.
// A user's estimator is a function put into the registry.

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "weft/rl/rows.h"

namespace weft {

struct AdvantageBatch {
  PackedRows rows;
  std::span<const double> rewards;           // [rows]; NaN: the row has no reward and gets advantage 0
  std::span<const int64_t> groups;           // [rows]; prompt of the row
  std::span<const double> token_rewards;     // [tokens]
  std::span<const double> values;            // [tokens]; gae
  std::span<const double> reward_baselines;  // [rows]; remax: reward of the greedy sample
};

struct AdvantageParams {
  bool norm_adv_by_std_in_grpo = true;
  double adv_eps = 1e-6;
  double gamma = 1.0;
  double lam = 1.0;
};

struct Advantages {
  std::vector<double> advantages;  // [tokens]
  std::vector<double> returns;     // [tokens]; equal to advantages for outcome estimators
};

using AdvantageFn = std::function<Advantages(const AdvantageBatch&, const AdvantageParams&)>;
using AdvantageRegistry = std::map<std::string, AdvantageFn>;

// grpo, rloo, opo, gpg, reinforce_plus_plus, reinforce_plus_plus_baseline, remax, gae.
AdvantageRegistry builtin_advantages();

// ValueError that lists the known names.
const AdvantageFn& find_advantage(const AdvantageRegistry& registry, const std::string& name);

// Each row's reward on its last token that counts; rows without one, and NaN rewards, place nothing.
std::vector<double> rewards_on_last_token(const PackedRows& rows, std::span<const double> rewards);

// (x - mean) * rsqrt(var + 1e-8) over the tokens that count, var with N - 1; shift_mean = false adds the mean back. Fewer than
// two tokens, or all equal: 0 (the mean, when it is added back). verl raises for the former.
std::vector<double> whiten(const PackedRows& rows, std::span<const double> values, bool shift_mean = true);

// Return to go over tokens that count: G = r + gamma * G_next.
std::vector<double> returns_to_go(const PackedRows& rows, std::span<const double> token_rewards, double gamma);

// Generalised advantage estimation; tokens that do not count are skipped over. returns = advantages before whitening + values.
Advantages gae(const PackedRows& rows, std::span<const double> token_rewards, std::span<const double> values, double gamma,
               double lam);

}  // namespace weft
