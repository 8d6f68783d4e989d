#include "weft/train/optimizer.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/io/test_files.h"

namespace weft {
namespace {

std::unique_ptr<nn::Parameter> parameter(const std::string& name, std::vector<int64_t> shape, uint64_t seed) {
  auto p = std::make_unique<nn::Parameter>(name, std::move(shape), nn::Precision::kParamDtype);
  p->materialize(at::kCPU, at::kFloat);
  const CounterRng rng(seed);
  float* x = p->master().data_ptr<float>();
  for (int64_t i = 0; i < p->numel(); ++i) x[i] = static_cast<float>(rng.below(static_cast<uint64_t>(i), 2001)) * 1e-3f - 1.0f;
  p->updated();
  return p;
}

void set_grad(nn::Parameter& p, uint64_t seed) {
  const CounterRng rng(seed);
  float* g = p.grad_data();
  for (int64_t i = 0; i < p.numel(); ++i) g[i] = static_cast<float>(rng.below(static_cast<uint64_t>(i), 2001)) * 1e-4f - 0.1f;
}

std::vector<double> values(const at::Tensor& t) { return {t.data_ptr<float>(), t.data_ptr<float>() + t.numel()}; }

// Three steps of AdamW in double: decay on 2-D only, clipping by the norm over both parameters, a warm-up rate.
TEST(Optimizer, ThreeStepsMatchTheClosedForm) {
  auto matrix = parameter("w", {7, 5}, 1), bias = parameter("b", {9}, 2);
  OptimRecipe recipe;
  recipe.lr = 0.02, recipe.weight_decay = 0.3, recipe.betas = {0.8, 0.95}, recipe.eps = 1e-6, recipe.clip_grad = 0.25,
  recipe.lr_warmup_steps = 2;
  Optimizer optimizer({matrix.get(), bias.get()}, recipe, 10);
  struct Model {
    std::vector<double> p, m, v;
    double decay;
  };
  std::vector<Model> oracle;
  for (nn::Parameter* p : {matrix.get(), bias.get()}) {
    const std::vector<double> start = values(p->master());
    oracle.push_back({start, std::vector<double>(start.size()), std::vector<double>(start.size()), p->dim() >= 2 ? 0.3 : 0.0});
  }
  for (int t = 1; t <= 3; ++t) {
    optimizer.zero_grad();
    set_grad(*matrix, 10 + static_cast<uint64_t>(t)), set_grad(*bias, 20 + static_cast<uint64_t>(t));
    const std::vector<double> grads[] = {values(matrix->grad()), values(bias->grad())};
    double squares = 0;
    for (const auto& g : grads)
      for (double x : g) squares += x * x;
    const double norm = optimizer.grad_norm(), lr = 0.02 * std::min(1.0, (t - 1) / 2.0);
    EXPECT_NEAR(norm, std::sqrt(squares), 1e-12);
    EXPECT_GT(norm, recipe.clip_grad);
    EXPECT_DOUBLE_EQ(optimizer.update(norm), lr);
    const double scale = 0.25 / (norm + 1e-6);
    for (size_t k = 0; k < 2; ++k)
      for (size_t i = 0; i < oracle[k].p.size(); ++i) {
        Model& o = oracle[k];
        const double g = grads[k][i] * scale;
        o.p[i] -= lr * o.decay * o.p[i];
        o.m[i] = 0.8 * o.m[i] + 0.2 * g;
        o.v[i] = 0.95 * o.v[i] + 0.05 * g * g;
        o.p[i] -= lr * (o.m[i] / (1 - std::pow(0.8, t))) / (std::sqrt(o.v[i] / (1 - std::pow(0.95, t))) + 1e-6);
      }
    const std::vector<double> after[] = {values(matrix->master()), values(bias->master())};
    for (size_t k = 0; k < 2; ++k)
      for (size_t i = 0; i < after[k].size(); ++i)
        EXPECT_NEAR(after[k][i], oracle[k].p[i], 3e-7 * t) << "step " << t << ", parameter " << k << ", " << i;
    for (double g : values(matrix->grad())) EXPECT_EQ(g, 0.0);
  }
  EXPECT_EQ(optimizer.updates(), 3);
}

TEST(Optimizer, DecayLeavesVectorsAlone) {
  auto matrix = parameter("w", {2, 3}, 1), bias = parameter("b", {6}, 1);
  const std::vector<double> before = values(matrix->master());
  OptimRecipe recipe;
  recipe.lr = 0.1, recipe.weight_decay = 0.5;
  Optimizer optimizer({matrix.get(), bias.get()}, recipe, 1);
  optimizer.update(optimizer.grad_norm());  // no gradient at all: decay only
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_NEAR(values(matrix->master())[i], before[i] * 0.95, 1e-7);
    EXPECT_EQ(values(bias->master())[i], before[i]);
  }
}

TEST(Optimizer, NormBelowTheLimitAndNoLimitLeaveTheGradient) {
  std::vector<std::vector<double>> results;
  for (double clip : {0.0, 100.0}) {
    auto p = parameter("w", {4, 4}, 3);
    OptimRecipe recipe;
    recipe.lr = 0.1, recipe.clip_grad = clip;
    Optimizer optimizer({p.get()}, recipe, 1);
    set_grad(*p, 4);
    optimizer.update(optimizer.grad_norm());
    results.push_back(values(p->master()));
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(Optimizer, GradientThatIsNotFiniteStopsBeforeTheUpdateAndIsNamed) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    auto good = parameter("model.good", {3, 3}, 1), broken = parameter("model.broken", {4}, 2);
    const std::vector<double> before = values(good->master());
    Optimizer optimizer({good.get(), broken.get()}, OptimRecipe{}, 1);
    set_grad(*good, 3), set_grad(*broken, 4);
    broken->grad_data()[2] = bad;
    const std::string text = message_of<ValueError>([&] { optimizer.grad_norm(); });
    EXPECT_NE(text.find("model.broken"), std::string::npos) << text;
    EXPECT_NE(text.find("nothing was updated"), std::string::npos) << text;
    EXPECT_EQ(optimizer.updates(), 0);
    EXPECT_EQ(values(good->master()), before);
  }
}

TEST(Optimizer, FrozenParametersHaveNoSlot) {
  auto a = parameter("a", {2, 2}, 1), b = parameter("b", {2, 2}, 2);
  b->set_trainable(false);
  const Optimizer optimizer({a.get(), b.get()}, OptimRecipe{}, 1);
  ASSERT_EQ(optimizer.slots().size(), 1u);
  EXPECT_EQ(optimizer.slots()[0].parameter, a.get());
}

TEST(LearningRate, SchedulesMatchTheirFormulas) {
  for (const char* type : {"constant", "linear", "cosine"}) {
    for (int64_t step = 0; step <= 25; ++step) {
      const double progress = std::min(1.0, std::max(0.0, (static_cast<double>(step) - 4) / 16));
      double expected = 1.0;
      if (std::string(type) == "linear") expected = std::max(0.1, 1 - 0.9 * progress);
      if (std::string(type) == "cosine") expected = 0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * progress));
      if (step < 4) expected = static_cast<double>(step) / 4;
      EXPECT_NEAR(learning_rate_factor(type, step, 4, 20, 0.1), expected, 1e-12) << type << " at " << step;
    }
    EXPECT_EQ(learning_rate_factor(type, 0, 0, 20, 0.1), 1.0) << "no warm-up";
    EXPECT_TRUE(std::isfinite(learning_rate_factor(type, 7, 7, 7, 0.0))) << "nothing after the warm-up";
  }
}

}  // namespace
}  // namespace weft
