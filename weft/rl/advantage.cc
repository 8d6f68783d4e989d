#include "weft/rl/advantage.h"

#include <cmath>

#include "weft/base/error.h"
#include "weft/rl/grpo.h"

namespace weft {
namespace {

Advantages outcome(const AdvantageBatch& batch, const std::vector<double>& per_row) {
  Advantages out;
  out.advantages = spread_to_tokens(batch.rows, per_row);
  out.returns = out.advantages;
  return out;
}

void check_outcome(const AdvantageBatch& batch) {
  check_rows(batch.rows);
  check_size("rewards", batch.rewards.size(), batch.rows.count());
  check_size("groups", batch.groups.size(), batch.rows.count());
}

Advantages grpo(const AdvantageBatch& batch, const AdvantageParams& p) {
  check_outcome(batch);
  return outcome(batch, grpo_advantages(batch.rewards, batch.groups, p.norm_adv_by_std_in_grpo, p.adv_eps));
}

Advantages rloo(const AdvantageBatch& batch, const AdvantageParams&) {
  check_outcome(batch);
  return outcome(batch, rloo_advantages(batch.rewards, batch.groups));
}

Advantages opo(const AdvantageBatch& batch, const AdvantageParams&) {
  check_outcome(batch);
  std::vector<double> lengths;
  for (int64_t i = 0; i < batch.rows.count(); ++i) lengths.push_back(static_cast<double>(row_tokens(batch.rows, i)));
  return outcome(batch, opo_advantages(batch.rewards, batch.groups, lengths));
}

Advantages gpg(const AdvantageBatch& batch, const AdvantageParams&) {
  check_outcome(batch);
  return outcome(batch, gpg_advantages(batch.rewards, batch.groups));
}

Advantages reinforce_plus_plus(const AdvantageBatch& batch, const AdvantageParams& p) {
  Advantages out;
  out.returns = returns_to_go(batch.rows, batch.token_rewards, p.gamma);
  out.advantages = whiten(batch.rows, out.returns);
  return out;
}

Advantages reinforce_plus_plus_baseline(const AdvantageBatch& batch, const AdvantageParams&) {
  check_outcome(batch);
  std::vector<uint8_t> mask(batch.rows.mask.begin(), batch.rows.mask.end());
  for (int64_t i = 0; i < batch.rows.count(); ++i) {
    if (!std::isnan(batch.rewards[i])) continue;
    for (int64_t t = batch.rows.offsets[i]; t < batch.rows.offsets[i + 1]; ++t) mask[t] = 0;  // not in the whitening either
  }
  const PackedRows rows{batch.rows.offsets, mask};
  Advantages out;
  out.advantages = whiten(rows, spread_to_tokens(rows, group_centred(batch.rewards, batch.groups)));
  out.returns = out.advantages;
  return out;
}

Advantages remax(const AdvantageBatch& batch, const AdvantageParams&) {
  check_rows(batch.rows);
  check_size("reward_baselines", batch.reward_baselines.size(), batch.rows.count());
  Advantages out;
  out.returns = returns_to_go(batch.rows, batch.token_rewards, 1.0);
  const std::vector<double> baselines = spread_to_tokens(batch.rows, batch.reward_baselines);
  for (size_t t = 0; t < baselines.size(); ++t) out.advantages.push_back(out.returns[t] - baselines[t]);
  return out;
}

Advantages gae_whitened(const AdvantageBatch& batch, const AdvantageParams& p) {
  Advantages out = gae(batch.rows, batch.token_rewards, batch.values, p.gamma, p.lam);
  out.advantages = whiten(batch.rows, out.advantages);
  return out;
}

}  // namespace

AdvantageRegistry builtin_advantages() {
  return {
      {"grpo", grpo},
      {"rloo", rloo},
      {"opo", opo},
      {"gpg", gpg},
      {"reinforce_plus_plus", reinforce_plus_plus},
      {"reinforce_plus_plus_baseline", reinforce_plus_plus_baseline},
      {"remax", remax},
      {"gae", gae_whitened},
  };
}

const AdvantageFn& find_advantage(const AdvantageRegistry& registry, const std::string& name) {
  const auto it = registry.find(name);
  if (it != registry.end()) return it->second;
  std::string known;
  for (const auto& entry : registry) known += (known.empty() ? "" : ", ") + entry.first;
  throw ValueError(fmt::format("unknown advantage estimator `{}`; known: {}", name, known));
}

std::vector<double> rewards_on_last_token(const PackedRows& rows, std::span<const double> rewards) {
  check_rows(rows);
  check_size("rewards", rewards.size(), rows.count());
  std::vector<double> out(rows.tokens(), 0.0);
  for (int64_t i = 0; i < rows.count(); ++i) {
    if (std::isnan(rewards[i])) continue;
    for (int64_t t = rows.offsets[i + 1] - 1; t >= rows.offsets[i]; --t) {
      if (!rows.mask[t]) continue;
      out[t] = rewards[i];
      break;
    }
  }
  return out;
}

std::vector<double> whiten(const PackedRows& rows, std::span<const double> values, bool shift_mean) {
  check_rows(rows);
  check_size("values", values.size(), rows.tokens());
  std::vector<double> out(rows.tokens(), 0.0);
  std::vector<int64_t> kept;
  for (int64_t t = 0; t < rows.tokens(); ++t) {
    if (rows.mask[t]) kept.push_back(t);
  }
  if (kept.empty()) return out;
  const auto n = static_cast<double>(kept.size());
  double sum = 0;
  bool all_equal = true;
  for (int64_t t : kept) {
    sum += values[t];
    all_equal = all_equal && values[t] == values[kept[0]];
  }
  const double mean = all_equal ? values[kept[0]] : sum / n;
  double squares = 0;
  for (int64_t t : kept) squares += (values[t] - mean) * (values[t] - mean);
  const double scale = all_equal ? 0.0 : 1.0 / std::sqrt(squares / (n - 1.0) + 1e-8);
  for (int64_t t : kept) out[t] = (values[t] - mean) * scale + (shift_mean ? 0.0 : mean);
  return out;
}

std::vector<double> returns_to_go(const PackedRows& rows, std::span<const double> token_rewards, double gamma) {
  check_rows(rows);
  check_size("token_rewards", token_rewards.size(), rows.tokens());
  std::vector<double> out(rows.tokens(), 0.0);
  for (int64_t i = 0; i < rows.count(); ++i) {
    double next = 0;
    for (int64_t t = rows.offsets[i + 1] - 1; t >= rows.offsets[i]; --t) {
      if (!rows.mask[t]) continue;
      next = token_rewards[t] + gamma * next;
      out[t] = next;
    }
  }
  return out;
}

Advantages gae(const PackedRows& rows, std::span<const double> token_rewards, std::span<const double> values, double gamma,
               double lam) {
  check_rows(rows);
  check_size("token_rewards", token_rewards.size(), rows.tokens());
  check_size("values", values.size(), rows.tokens());
  Advantages out;
  out.advantages.assign(rows.tokens(), 0.0);
  out.returns.assign(rows.tokens(), 0.0);
  for (int64_t i = 0; i < rows.count(); ++i) {
    double next_value = 0;
    double next_advantage = 0;
    for (int64_t t = rows.offsets[i + 1] - 1; t >= rows.offsets[i]; --t) {
      if (!rows.mask[t]) continue;
      const double delta = token_rewards[t] + gamma * next_value - values[t];
      next_advantage = delta + gamma * lam * next_advantage;
      next_value = values[t];
      out.advantages[t] = next_advantage;
      out.returns[t] = next_advantage + values[t];
    }
  }
  return out;
}

}  // namespace weft
