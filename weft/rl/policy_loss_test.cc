#include "weft/rl/policy_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "weft/base/error.h"
#include "weft/rl/golden_test_util.h"
#include "weft/rl/kl.h"
#include "weft/rl/value_loss.h"

namespace weft {
namespace {

using rl_test::Values;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Random packed rows: some empty, some fully masked, some with holes; NaN wherever the mask is 0.
struct Batch {
  std::vector<int64_t> offsets = {0};
  std::vector<uint8_t> mask;
  Values log_probs, old_log_probs, ref_log_probs, advantages, weights;

  explicit Batch(uint64_t seed, bool uniform_rows, double gap = 0.3) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    for (int row = 0; row < 7; ++row) {
      const int64_t length = row == 2 ? 0 : 1 + static_cast<int64_t>(random() % 6);
      const double advantage = normal(random);
      for (int64_t t = 0; t < length; ++t) {
        const bool counts = row != 4 && random() % 4 != 0;
        mask.push_back(counts);
        const double l = -0.2 - std::fabs(normal(random));
        log_probs.push_back(counts ? l : kNan);
        old_log_probs.push_back(counts ? l + gap * normal(random) : kNan);
        ref_log_probs.push_back(counts ? l + gap * normal(random) : kNan);
        advantages.push_back(!counts ? kNan : uniform_rows ? advantage : normal(random));
        weights.push_back(!counts ? kNan : uniform_rows ? 1.0 + row * 0.1 : std::fabs(normal(random)));
      }
      offsets.push_back(static_cast<int64_t>(mask.size()));
    }
  }

  PackedRows rows() const { return {offsets, mask}; }
  PolicyBatch policy() const { return {rows(), log_probs, old_log_probs, {}, advantages, weights}; }
};

const AggregationMode kModes[] = {AggregationMode::kTokenMean, AggregationMode::kSeqMeanTokenMean,
                                  AggregationMode::kSeqMeanTokenSum, AggregationMode::kSeqMeanTokenSumNorm,
                                  AggregationMode::kTokenSum};

Aggregation aggregation_for(const Batch& batch, AggregationMode mode) { return {mode, count_denominators(batch.rows(), 8)}; }

template <typename Loss>
void expect_finite_differences(Values& variable, const std::vector<uint8_t>& mask, std::span<const double> grad, const Loss& loss,
                               const std::string& what) {
  constexpr double kStep = 1e-6;
  for (size_t t = 0; t < mask.size(); ++t) {
    if (!mask[t]) {
      EXPECT_EQ(grad[t], 0.0) << what;
      continue;
    }
    const double at = variable[t];
    variable[t] = at + kStep;
    const double above = loss();
    variable[t] = at - kStep;
    const double below = loss();
    variable[t] = at;
    ASSERT_NEAR((above - below) / (2 * kStep), grad[t], 2e-8 * (1 + std::fabs(grad[t]))) << what << " token " << t;
  }
}

TEST(PolicyLossTest, Gradient_EqualsFiniteDifferences) {
  const PolicyLossRegistry registry = builtin_policy_losses();
  for (const auto& [name, loss] : registry) {
    if (name == "cispo") continue;  // holds its ratio constant: own test
    // gspo's token gradient is that of its value only while rows are uniform.
    const bool uniform = name == "gspo" || name == "gspo_token";
    for (const AggregationMode mode : kModes) {
      if (loss.needs_seq_mean && mode != AggregationMode::kSeqMeanTokenMean) continue;
      for (uint64_t seed = 1; seed <= 6; ++seed) {
        Batch batch(seed, uniform);
        const Aggregation aggregation = aggregation_for(batch, mode);
        const PolicyLossResult r = policy_loss(loss, {}, batch.policy(), aggregation);
        expect_finite_differences(
            batch.log_probs, batch.mask, r.grad,
            [&, &loss_ref = loss] { return policy_loss(loss_ref, {}, batch.policy(), aggregation).loss; },
            name + " " + aggregation_mode_name(mode));
      }
    }
  }
}

TEST(PolicyLossTest, Cispo_GradientIsThatOfALinearLoss) {
  Batch batch(3, false);
  const Aggregation aggregation = aggregation_for(batch, AggregationMode::kTokenMean);
  const PolicyLossResult r = policy_loss(builtin_policy_losses().at("cispo"), {}, batch.policy(), aggregation);
  double loss = 0;
  for (size_t t = 0; t < batch.mask.size(); ++t) {
    if (batch.mask[t]) loss += r.grad[t] * batch.log_probs[t];
  }
  EXPECT_NEAR(loss, r.loss, 1e-14);
}

// The batch rows [begin, end) as a batch of their own.
struct Slice {
  std::vector<int64_t> offsets;
  int64_t begin, count;
  Slice(const Batch& batch, int64_t first, int64_t last) : begin(batch.offsets[first]), count(batch.offsets[last] - begin) {
    for (int64_t i = first; i <= last; ++i) offsets.push_back(batch.offsets[i] - begin);
  }
  template <typename T>
  std::span<const T> of(const std::vector<T>& values) const {
    return std::span<const T>(values).subspan(begin, count);
  }
};

TEST(PolicyLossTest, Loss_DoesNotChangeWithTheMicroBatchSplit) {
  for (const auto& [name, loss] : builtin_policy_losses()) {
    for (const AggregationMode mode : kModes) {
      if (loss.needs_seq_mean && mode != AggregationMode::kSeqMeanTokenMean) continue;
      const Batch batch(11, false);
      const Aggregation aggregation = aggregation_for(batch, mode);
      const PolicyLossResult whole = policy_loss(loss, {}, batch.policy(), aggregation);
      for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{0, 3, 7}, {0, 1, 2, 3, 4, 5, 6, 7}, {0, 2, 3, 5, 7}}) {
        double sum = 0, clipped = 0;
        for (size_t k = 0; k + 1 < cuts.size(); ++k) {
          const Slice s(batch, cuts[k], cuts[k + 1]);
          const PolicyLossResult part = policy_loss(loss, {},
                                                    {{s.offsets, s.of(batch.mask)},
                                                     s.of(batch.log_probs),
                                                     s.of(batch.old_log_probs),
                                                     {},
                                                     s.of(batch.advantages),
                                                     s.of(batch.weights)},
                                                    aggregation);
          sum += part.loss;
          clipped += part.clipped;
          for (int64_t t = 0; t < s.count; ++t) EXPECT_EQ(part.grad[t], whole.grad[s.begin + t]) << name;
        }
        EXPECT_NEAR(sum, whole.loss, 1e-14 * (1 + std::fabs(whole.loss))) << name;
        EXPECT_EQ(clipped, whole.clipped) << name;
      }
    }
  }
}

TEST(PolicyLossTest, Loss_DoesNotChangeWhenMaskedTokensAreLeftOut) {
  const Batch batch(5, false);
  std::vector<int64_t> offsets = {0}, kept;
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    for (int64_t t = batch.offsets[i]; t < batch.offsets[i + 1]; ++t) {
      if (batch.mask[t]) kept.push_back(t);
    }
    offsets.push_back(static_cast<int64_t>(kept.size()));
  }
  const auto pick = [&kept](const Values& values) {
    Values out;
    for (int64_t t : kept) out.push_back(values[t]);
    return out;
  };
  const std::vector<uint8_t> mask(kept.size(), 1);
  const Values l = pick(batch.log_probs), old = pick(batch.old_log_probs), a = pick(batch.advantages), w = pick(batch.weights);
  for (const auto& [name, loss] : builtin_policy_losses()) {
    const Aggregation aggregation = aggregation_for(batch, AggregationMode::kSeqMeanTokenMean);
    const PolicyLossResult with = policy_loss(loss, {}, batch.policy(), aggregation);
    const PolicyLossResult without = policy_loss(loss, {}, {{offsets, mask}, l, old, {}, a, w}, aggregation);
    EXPECT_EQ(with.loss, without.loss) << name;
    for (size_t k = 0; k < kept.size(); ++k) EXPECT_EQ(with.grad[kept[k]], without.grad[k]) << name;
    EXPECT_TRUE(std::isfinite(with.loss)) << name;  // the masked positions hold NaN
  }
}

TEST(PolicyLossTest, Loss_OfABatchWithoutTokensIsZero) {
  const std::vector<int64_t> none = {0}, masked_offsets = {0, 2, 2};
  const std::vector<uint8_t> mask = {0, 0};
  const Values nan(2, kNan);
  for (const auto& [name, loss] : builtin_policy_losses()) {
    EXPECT_EQ(policy_loss(loss, {}, {{none, {}}, {}, {}, {}, {}, {}}, {}).loss, 0.0) << name;
    const PolicyLossResult r = policy_loss(loss, {}, {{masked_offsets, mask}, nan, nan, {}, nan, {}}, {});
    EXPECT_EQ(r.loss, 0.0) << name;
    EXPECT_EQ(r.grad, Values(2, 0.0)) << name;
    EXPECT_EQ(r.tokens, 0.0);
  }
}

TEST(PolicyLossTest, Gradient_OnPolicyIsThatOfReinforce) {
  Batch batch(8, true);
  batch.old_log_probs = batch.log_probs;
  batch.weights.clear();
  const Aggregation aggregation = aggregation_for(batch, AggregationMode::kSeqMeanTokenMean);
  const PolicyLossRegistry registry = builtin_policy_losses();
  const Values expected = policy_loss(registry.at("reinforce"), {}, batch.policy(), aggregation).grad;
  for (const auto& [name, loss] : registry) {
    rl_test::expect_close(policy_loss(loss, {}, batch.policy(), aggregation).grad, expected, name, 1e-12);
  }
}

TEST(PolicyLossTest, DualClip_ZeroIsOff) {
  const std::vector<int64_t> offsets = {0, 1};
  const std::vector<uint8_t> mask = {1};
  const Values l = {-1.0}, old = {-4.0}, a = {-1.0};
  const PolicyBatch batch{{offsets, mask}, l, old, {}, a, {}};
  const Aggregation aggregation{AggregationMode::kTokenSum, {}};
  const PolicyLoss vanilla = builtin_policy_losses().at("vanilla");
  PolicyParams p;
  EXPECT_EQ(policy_loss(vanilla, p, batch, aggregation).loss, 3.0);
  EXPECT_EQ(policy_loss(vanilla, p, batch, aggregation).grad[0], 0.0);
  EXPECT_EQ(policy_loss(vanilla, p, batch, aggregation).clipped_lower, 1.0);
  p.clip_ratio_c = 0.0;
  EXPECT_NEAR(policy_loss(vanilla, p, batch, aggregation).loss, std::exp(3.0), 1e-13);
  EXPECT_NEAR(policy_loss(vanilla, p, batch, aggregation).grad[0], std::exp(3.0), 1e-13);
}

TEST(PolicyLossTest, Registry_TakesAUsersLoss) {
  PolicyLossRegistry registry = builtin_policy_losses();
  registry["squared_gap"] = {[](const PolicyRow& row, const PolicyParams&, PolicyRowResult& out) {
    for (size_t t = 0; t < row.size(); ++t) {
      const double d = row.log_probs[t] - row.old_log_probs[t];
      out.loss[t] = d * d;
      out.grad[t] = row.weights[t] * 2 * d;
    }
  }};
  Batch batch(2, false);
  const Aggregation aggregation = aggregation_for(batch, AggregationMode::kTokenMean);
  const PolicyLoss& mine = find_policy_loss(registry, "squared_gap");
  const PolicyLossResult r = policy_loss(mine, {}, batch.policy(), aggregation);
  expect_finite_differences(
      batch.log_probs, batch.mask, r.grad, [&] { return policy_loss(mine, {}, batch.policy(), aggregation).loss; },
      "squared_gap");
}

TEST(PolicyLossTest, CheckParams_RefusesWhatHasNoMeaning) {
  const PolicyLossRegistry registry = builtin_policy_losses();
  const auto mode = AggregationMode::kTokenMean;
  EXPECT_THROW(find_policy_loss(registry, "ppo"), ValueError);
  EXPECT_THROW(check_policy_params("gmpo", registry.at("gmpo"), {}, mode), ValueError);
  check_policy_params("gmpo", registry.at("gmpo"), {}, AggregationMode::kSeqMeanTokenMean);
  const PolicyLoss& vanilla = registry.at("vanilla");
  for (const PolicyParams& bad : {PolicyParams{-0.1, 0.2, 3.0, 1.0, 1.05}, PolicyParams{0.2, kNan, 3.0, 1.0, 1.05},
                                  PolicyParams{0.2, 0.2, 0.5, 1.0, 1.05}, PolicyParams{0.2, 0.2, 3.0, 0.0, 1.05}}) {
    EXPECT_THROW(check_policy_params("vanilla", vanilla, bad, mode), ValueError);
  }
  check_policy_params("vanilla", vanilla, {}, mode);
}

TEST(KlLossTest, Gradient_EqualsFiniteDifferences) {
  for (const char* name : {"k1", "k2", "k3", "abs", "low_var_kl", "mse", "kl"}) {
    for (const bool unbiased : {false, true}) {
      Batch batch(4, false);
      const Aggregation aggregation = aggregation_for(batch, AggregationMode::kSeqMeanTokenMean);
      const KlLossOptions options{parse_kl_kind(name), 0.5, unbiased};
      const auto loss = [&] {
        return kl_loss(options, batch.rows(), batch.log_probs, batch.old_log_probs, batch.ref_log_probs, aggregation);
      };
      expect_finite_differences(
          batch.log_probs, batch.mask, loss().grad, [&] { return loss().loss; }, name);
    }
  }
}

TEST(ValueLossTest, Gradient_EqualsFiniteDifferences) {
  for (const AggregationMode mode : kModes) {
    Batch batch(9, false);
    const Aggregation aggregation = aggregation_for(batch, mode);
    const auto loss = [&] {
      return value_loss(batch.rows(), batch.log_probs, batch.old_log_probs, batch.advantages, 0.2, aggregation);
    };
    expect_finite_differences(
        batch.log_probs, batch.mask, loss().grad, [&] { return loss().loss; }, aggregation_mode_name(mode));
    EXPECT_GT(loss().clipped, 0.0);
  }
}

}  // namespace
}  // namespace weft
