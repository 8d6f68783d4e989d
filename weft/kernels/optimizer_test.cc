#include "weft/kernels/optimizer.h"

#include <cmath>

#include "weft/kernels/test_support.h"

namespace weft::kernels {
namespace {

using testing::bits_equal;
using testing::normal_floats;

class Optimizer : public testing::Kernels {};

struct State {
  std::vector<float> p, m, v;
};

// One scalar step with the operations of the header, each rounded.
void reference_step(const AdamWStep& s, const std::vector<float>& grad, State& state) {
  double b1 = 1.0, b2 = 1.0;
  for (int64_t t = 0; t < s.step; ++t) {
    b1 *= s.beta1;
    b2 *= s.beta2;
  }
  const float step_size = static_cast<float>(s.lr / (1.0 - b1)), root = static_cast<float>(std::sqrt(1.0 - b2));
  for (size_t i = 0; i < grad.size(); ++i) {
    float &p = state.p[i], &m = state.m[i], &v = state.v[i];
    const float g = grad[i] * static_cast<float>(s.grad_scale);
    p = p - static_cast<float>(s.lr * s.weight_decay) * p;
    m = static_cast<float>(s.beta1) * m + static_cast<float>(1.0 - s.beta1) * g;
    v = static_cast<float>(s.beta2) * v + static_cast<float>(1.0 - s.beta2) * g * g;
    p = p - step_size * m / (std::sqrt(v) / root + static_cast<float>(s.eps));
  }
}

TEST_F(Optimizer, AdamWHasTheScalarBits) {
  for (const int64_t n : {0, 1, 37, 50000}) {
    const State start{normal_floats(n, 1), std::vector<float>(static_cast<size_t>(n)),
                      std::vector<float>(static_cast<size_t>(n))};
    State expected = start;
    AdamWStep s{1e-2, 0.9, 0.95, 1e-8, 0.1, 1, 0.5};
    for (s.step = 1; s.step <= 3; ++s.step) reference_step(s, normal_floats(n, static_cast<uint64_t>(10 + s.step)), expected);
    everywhere([&] {
      State state = start;
      for (s.step = 1; s.step <= 3; ++s.step) {
        const std::vector<float> grad = normal_floats(n, static_cast<uint64_t>(10 + s.step));
        adamw(s, grad.data(), state.p.data(), state.m.data(), state.v.data(), n);
      }
      EXPECT_TRUE(bits_equal(state.p, expected.p));
      EXPECT_TRUE(bits_equal(state.m, expected.m));
      EXPECT_TRUE(bits_equal(state.v, expected.v));
    });
  }
}

// From zero moments the first step moves every parameter by lr against its gradient's sign, after the decay.
TEST_F(Optimizer, FirstStepIsLrTimesTheSign) {
  std::vector<float> p = {1.0f, 1.0f, -2.0f}, m(3), v(3);
  const std::vector<float> g = {3.0f, -0.25f, 7.0f};
  adamw({0.01, 0.9, 0.999, 1e-12, 0.5, 1, 1.0}, g.data(), p.data(), m.data(), v.data(), 3);
  EXPECT_NEAR(p[0], 0.995 - 0.01, 1e-6);
  EXPECT_NEAR(p[1], 0.995 + 0.01, 1e-6);
  EXPECT_NEAR(p[2], -1.99 - 0.01, 1e-6);
}

TEST_F(Optimizer, SumOfSquaresIsTheSameEverywhere) {
  for (const int64_t n : {0, 5, 4096, 30011}) {
    const std::vector<float> x = normal_floats(n, 3);
    set_num_threads(1);
    const double first = sum_of_squares(x.data(), n);
    double naive = 0;
    for (const float f : x) naive += static_cast<double>(f) * static_cast<double>(f);
    EXPECT_NEAR(first, naive, 1e-12 * (1 + naive));
    everywhere([&] { EXPECT_EQ(sum_of_squares(x.data(), n), first); });
  }
}

TEST_F(Optimizer, AllFiniteFindsOneBadElement) {
  everywhere([] {
    std::vector<float> x = normal_floats(40000, 1);
    EXPECT_TRUE(all_finite(x.data(), 40000));
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      x[39999] = bad;
      EXPECT_FALSE(all_finite(x.data(), 40000));
      EXPECT_TRUE(all_finite(x.data(), 39999));
    }
  });
}

}  // namespace
}  // namespace weft::kernels
