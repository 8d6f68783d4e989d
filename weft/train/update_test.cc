#include "weft/train/update.h"

#include <cmath>

#include "weft/base/random.h"
#include "weft/rollout/engine.h"
#include "weft/train/prompts.h"
#include "weft/train/test_runs.h"
#include "weft/train/trainer.h"

namespace weft {
namespace {

// Samples of the tiny model, and advantages, old and reference log-probs drawn from a counter.
class UpdateTest : public RunTest {
 protected:
  void SetUp() override {
    recipe_ = recipe("unused", {"data.max_response_length=8"});
    model_ = load_model(tiny_model(), DType::kF32);
    tokenizer_ = Tokenizer::load(tiny_model());
    const PromptSource source(recipe_.data.train_files, recipe_, *tokenizer_, 6);
    const auto engine = make_engine(recipe_, model_, *model_.model, *tokenizer_, true);
    std::vector<Prompt> prompts;
    for (int64_t row : source.rows()) prompts.push_back(source.prompt(row));
    for (ScoredSample& s : generate(*engine, prompts, training_params(recipe_), 11, {}))
      samples_.push_back(std::move(s.trajectory));
    const CounterRng rng(99);
    uint64_t at = 0;
    auto noise = [&](double scale) { return (static_cast<double>(rng.below(at++, 2001)) * 1e-3 - 1.0) * scale; };
    for (const Trajectory& t : samples_) {
      trajectories_.push_back(&t);
      members_.push_back(members_.size());
      old_.emplace_back(), ref_.emplace_back(), advantages_.emplace_back(), masks_.emplace_back();
      for (float l : t.rollout_log_probs) {
        old_.back().push_back(l + static_cast<float>(noise(0.1)));
        ref_.back().push_back(l + static_cast<float>(noise(0.5)));
        advantages_.back().push_back(noise(2.0));
        masks_.back().push_back(rng.below(at++, 8) > 0);
      }
    }
    options_.loss = &find_policy_loss(registry_.policy_losses, "vanilla");
    options_.max_length = 8;
    options_.kl = {parse_kl_kind("low_var_kl"), 0.1, false};
  }

  using Gradients = std::map<std::string, std::vector<float>>;
  UpdateSums accumulate() {
    for (nn::Parameter* p : model_.model->parameters()) p->zero_grad();
    return accumulate_gradients(*model_.model, {&trajectories_, &old_, &ref_, &advantages_, &masks_, nullptr, &members_},
                                options_);
  }
  Gradients gradients() {
    accumulate();
    Gradients out;
    for (nn::Parameter* p : model_.model->parameters()) {
      const at::Tensor& g = p->grad();
      EXPECT_TRUE(g.defined()) << p->name();
      if (g.defined()) out[p->name()].assign(g.data_ptr<float>(), g.data_ptr<float>() + g.numel());
    }
    return out;
  }
  void everything_on() {
    options_.use_kl_loss = true;
    options_.entropy_coeff = 0.05;
    options_.max_tokens_per_micro_batch = 40;
  }
  double loss() {
    const UpdateSums s = accumulate();
    return s.pg_loss + s.kl_loss + s.entropy_loss;
  }

  // Analytic gradients against central differences of the loss, at each parameter's largest entry and one more.
  void check_finite_differences(double step, double tolerance) {
    options_.actor.replay = true;  // the selection is no differentiable function: it stays
    const Gradients g = gradients();
    double largest = 0;
    for (const auto& [name, values] : g)
      for (float x : values) largest = std::max(largest, std::fabs(static_cast<double>(x)));
    ASSERT_GT(largest, 1e-3);
    int checked = 0;
    for (nn::Parameter* p : model_.model->parameters()) {
      const std::vector<float>& values = g.at(p->name());
      const auto top =
          std::max_element(values.begin(), values.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
      if (std::fabs(*top) < 0.02 * largest) continue;  // below the noise of fp32 forwards
      const size_t i = static_cast<size_t>(top - values.begin());
      float* x = p->master().data_ptr<float>() + i;
      const float before = *x;
      auto at_value = [&](double delta) {
        *x = static_cast<float>(before + delta);
        p->updated();
        return std::pair(loss(), static_cast<double>(*x));
      };
      const auto [high, above] = at_value(step);
      const auto [low, below] = at_value(-step);
      *x = before;
      p->updated();
      EXPECT_NEAR((high - low) / (above - below), values[i], tolerance * largest) << p->name() << "[" << i << "]";
      ++checked;
    }
    EXPECT_GE(checked, 5);
  }

  Recipe recipe_;
  LoadedModel model_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<Trajectory> samples_;
  std::vector<const Trajectory*> trajectories_;
  std::vector<std::vector<float>> old_, ref_;
  std::vector<std::vector<double>> advantages_;
  std::vector<std::vector<uint8_t>> masks_;
  std::vector<size_t> members_;
  UpdateOptions options_;
};

void expect_close(const std::map<std::string, std::vector<float>>& a, const std::map<std::string, std::vector<float>>& b,
                  const std::string& what) {
  double all = 0;
  for (const auto& [name, values] : a)
    for (float x : values) all = std::max(all, std::fabs(static_cast<double>(x)));
  ASSERT_GT(all, 0.0);
  for (const auto& [name, values] : a) {
    double largest = 1e-3 * all, difference = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::fabs(static_cast<double>(values[i])));
      difference = std::max(difference, std::fabs(static_cast<double>(values[i]) - b.at(name)[i]));
    }
    EXPECT_LE(difference / largest, 4e-6) << what << ": " << name;
  }
}

TEST_F(UpdateTest, GradientsDoNotDependOnTheSplit) {
  everything_on();
  for (const char* mode : {"token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"}) {
    options_.mode = parse_aggregation_mode(mode);
    options_.max_tokens_per_micro_batch = 1 << 20;
    const Gradients whole = gradients();
    const double value = loss();
    for (int64_t tokens : {1, 25, 60}) {
      options_.max_tokens_per_micro_batch = tokens;
      expect_close(whole, gradients(), fmt::format("{}, {} tokens a micro-batch", mode, tokens));
      EXPECT_NEAR(loss(), value, 1e-12);
    }
  }
}

TEST_F(UpdateTest, GradientsDoNotDependOnTheOrderOfMembers) {
  everything_on();
  const Gradients forth = gradients();
  std::reverse(members_.begin(), members_.end());
  expect_close(forth, gradients(), "reversed");
}

// With denominators of each micro-batch instead of the whole, the comparison above fails.
TEST_F(UpdateTest, LocalDenominatorsWouldShow) {
  everything_on();
  const Gradients whole = gradients();
  const std::vector<size_t> all = members_;
  Gradients sum;
  for (size_t half = 0; half < 2; ++half) {
    members_.assign(all.begin() + static_cast<std::ptrdiff_t>(half * all.size() / 2),
                    all.begin() + static_cast<std::ptrdiff_t>((half + 1) * all.size() / 2));
    for (auto& [name, values] : gradients()) {
      auto& s = sum[name];
      s.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) s[i] += values[i] / 2;
    }
  }
  double worst = 0;
  for (const auto& [name, values] : whole)
    for (size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::fabs(static_cast<double>(values[i]) - sum[name][i]));
  EXPECT_GT(worst, 1e-4);
}

TEST_F(UpdateTest, RecomputeChangesNoBit) {
  everything_on();
  for (bool replay : {false, true}) {
    options_.actor.replay = replay;
    options_.actor.recompute = false;
    const Gradients kept = gradients();
    options_.actor.recompute = true;
    EXPECT_EQ(kept, gradients()) << "replay " << replay;
  }
}

TEST_F(UpdateTest, ReplayOfTheLiveChoicesChangesNoBit) {
  everything_on();
  const Gradients live = gradients();
  options_.actor.replay = true;
  EXPECT_EQ(live, gradients());
}

TEST_F(UpdateTest, ThreadsAndTargetsChangeNoBit) {
  everything_on();
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    model_ = load_model(tiny_model(), dtype);
    Gradients first;
    {
      const OneThreadCount one(1);
      first = gradients();
    }
    for (int n : {2, 4}) {
      const OneThreadCount threads(n);
      EXPECT_EQ(first, gradients()) << n << " threads, " << dtype_name(dtype);
    }
    const OneThreadCount one(1);
    for (kernels::Target t : kernels::available_targets()) {
      const OneTarget target(t);
      EXPECT_EQ(first, gradients()) << kernels::target_name(t) << ", " << dtype_name(dtype);
    }
  }
}

TEST_F(UpdateTest, PolicyLossMatchesFiniteDifferences) {
  options_.params.clip_ratio_low = options_.params.clip_ratio_high = 0.9;  // away from the kinks of clipping
  check_finite_differences(2e-3, 2e-3);
}

TEST_F(UpdateTest, KlLossMatchesFiniteDifferences) {
  for (auto& a : advantages_) std::fill(a.begin(), a.end(), 0.0);
  options_.use_kl_loss = true;
  options_.kl.coef = 1.0;
  check_finite_differences(2e-3, 2e-3);
}

TEST_F(UpdateTest, EntropyBonusMatchesFiniteDifferences) {
  for (auto& a : advantages_) std::fill(a.begin(), a.end(), 0.0);
  options_.entropy_coeff = 1.0;
  check_finite_differences(2e-3, 2e-3);
}

TEST_F(UpdateTest, ZeroAdvantagesGiveZeroGradients) {
  for (auto& a : advantages_) std::fill(a.begin(), a.end(), 0.0);
  for (const auto& [name, values] : gradients())
    for (float x : values) ASSERT_EQ(x, 0.0f) << name;
}

TEST_F(UpdateTest, MaskedTokensAreNeverRead) {
  everything_on();
  const Gradients before = gradients();
  bool any = false;
  for (size_t i = 0; i < masks_.size(); ++i)
    for (size_t j = 0; j < masks_[i].size(); ++j)
      if (!masks_[i][j]) any = true, old_[i][j] = NAN, ref_[i][j] = NAN, advantages_[i][j] = NAN;
  ASSERT_TRUE(any);
  EXPECT_EQ(before, gradients());
}

TEST_F(UpdateTest, LossThatIsNotFiniteIsRefused) {
  advantages_[0][0] = NAN;
  masks_[0][0] = 1;
  const UpdateSums sums = accumulate();
  const std::string text = message_of<ValueError>([&] { sums.check_finite(7); });
  EXPECT_NE(text.find("step 7"), std::string::npos) << text;
}

TEST_F(UpdateTest, StopBetweenMicroBatchesIsAStoppedError) {
  options_.max_tokens_per_micro_batch = 1;
  request_stop(SIGTERM);
  EXPECT_NE(message_of<StoppedError>([&] { accumulate(); }).find("SIGTERM"), std::string::npos);
}

TEST(UpdateSums, SurviveACheckpointAndMerge) {
  UpdateSums a, b;
  a.updates = 1, a.pg_loss = 0.5, a.tokens = 10, a.clipped = 3, a.lr = 0.1, a.grad_norm = 2;
  b.updates = 1, b.pg_loss = 0.25, b.tokens = 30, b.clipped = 1, b.lr = 0.2, b.grad_norm = 4;
  UpdateSums restored;
  restored.restore(a.values());
  restored.merge(b);
  MetricsRow row;
  restored.report(row);
  EXPECT_DOUBLE_EQ(*row.find("actor/pg_clipfrac"), 0.1);
  EXPECT_DOUBLE_EQ(*row.find("actor/pg_loss"), 0.375);
  EXPECT_DOUBLE_EQ(*row.find("actor/grad_norm"), 3.0);
  EXPECT_DOUBLE_EQ(*row.find("actor/lr"), 0.2);
}

}  // namespace
}  // namespace weft
