#include "weft/base/math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace weft {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Distance in ulps of the double nearest to `exact`; denormal ulps below the normal range.
double ulps(double value, long double exact) {
  const int exponent = std::max(std::ilogb(static_cast<double>(exact)), -1022);
  return static_cast<double>(std::fabs((static_cast<long double>(value) - exact) / std::scalbn(1.0L, exponent - 52)));
}

TEST(MathTest, Exp_FollowsLongDouble) {
  std::mt19937_64 random(1);
  double worst = 0;
  for (const double range : {1e-8, 0.7, 30.0, 708.0}) {
    std::uniform_real_distribution<double> x(-range, range);
    for (int i = 0; i < 50000; ++i) {
      const double v = x(random);
      worst = std::max(worst, ulps(det_exp(v), std::exp(static_cast<long double>(v))));
    }
  }
  std::uniform_real_distribution<double> tiny(-745.2, -708.0);
  for (int i = 0; i < 20000; ++i) {
    const double v = tiny(random);
    worst = std::max(worst, ulps(det_exp(v), std::exp(static_cast<long double>(v))));
  }
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_LT(worst, 1.5);
}

TEST(MathTest, Exp_HoldsItsEdges) {
  EXPECT_EQ(det_exp(0.0), 1.0);
  EXPECT_EQ(det_exp(-0.0), 1.0);
  EXPECT_EQ(det_exp(kInf), kInf);
  EXPECT_EQ(det_exp(-kInf), 0.0);
  EXPECT_TRUE(std::isnan(det_exp(std::nan(""))));
  EXPECT_EQ(det_exp(709.79), kInf);
  EXPECT_LT(ulps(det_exp(709.782712893383973), std::exp(709.782712893383973L)), 1.5);
  EXPECT_EQ(det_exp(-746.5), 0.0);
  EXPECT_EQ(det_exp(-745.0), std::numeric_limits<double>::denorm_min());
}

TEST(MathTest, Log_FollowsLongDouble) {
  std::mt19937_64 random(2);
  double worst = 0;
  std::uniform_real_distribution<double> exponent(-1074.0, 1023.9);
  std::uniform_real_distribution<double> around(0.5, 2.0);
  std::uniform_real_distribution<double> close(-1e-6, 1e-6);
  for (int i = 0; i < 60000; ++i) {
    for (const double v : {std::exp2(exponent(random)), around(random), 1.0 + close(random)}) {
      worst = std::max(worst, ulps(det_log(v), std::log(static_cast<long double>(v))));
    }
  }
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_LT(worst, 0.6);
}

TEST(MathTest, Log_HoldsItsEdges) {
  EXPECT_EQ(det_log(1.0), 0.0);
  EXPECT_EQ(det_log(0.0), -kInf);
  EXPECT_EQ(det_log(kInf), kInf);
  EXPECT_TRUE(std::isnan(det_log(-1.0)));
  EXPECT_TRUE(std::isnan(det_log(std::nan(""))));
  const double denormal = std::numeric_limits<double>::denorm_min();
  EXPECT_LT(ulps(det_log(denormal), std::log(static_cast<long double>(denormal))), 0.6);
}

TEST(MathTest, SinAndCos_FollowLongDouble) {
  std::mt19937_64 random(3);
  double worst = 0;
  for (const double range : {1e-5, 1.0, 10.0, 1e4, 1e9, 1e12}) {
    std::uniform_real_distribution<double> x(-range, range);
    for (int i = 0; i < 30000; ++i) {
      const double v = x(random);
      worst = std::max(worst, ulps(det_sin(v), std::sin(static_cast<long double>(v))));
      worst = std::max(worst, ulps(det_cos(v), std::cos(static_cast<long double>(v))));
    }
  }
  // The doubles closest to multiples of pi/2: nearly all digits cancel.
  for (int64_t k = 1; k < 20000; ++k) {
    const auto v = static_cast<double>(static_cast<long double>(k) * 1.570796326794896619231321691639751442L);
    worst = std::max(worst, ulps(det_sin(v), std::sin(static_cast<long double>(v))));
    worst = std::max(worst, ulps(det_cos(v), std::cos(static_cast<long double>(v))));
  }
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_LT(worst, 1.5);
}

TEST(MathTest, SinAndCos_HoldTheirEdges) {
  EXPECT_EQ(det_sin(0.0), 0.0);
  EXPECT_TRUE(std::signbit(det_sin(-0.0)));
  EXPECT_EQ(det_cos(0.0), 1.0);
  EXPECT_EQ(det_sin(1e-300), 1e-300);
  for (const double v : {kInf, -kInf, std::nan(""), 1e15}) {
    EXPECT_TRUE(std::isnan(det_sin(v)));
    EXPECT_TRUE(std::isnan(det_cos(v)));
  }
}

TEST(MathTest, Pow_FollowsLongDouble) {
  std::mt19937_64 random(4);
  double worst = 0;
  std::uniform_real_distribution<double> log_x(-700.0, 700.0);
  std::uniform_real_distribution<double> target(-707.0, 707.0);
  std::uniform_real_distribution<double> unit(-1.0, 1.0);
  for (int i = 0; i < 60000; ++i) {
    const double x = std::exp(log_x(random));
    const double y = target(random) / std::log(x);
    worst = std::max(worst, ulps(det_pow(x, y), std::pow(static_cast<long double>(x), static_cast<long double>(y))));
    const double base = 10000.0 * (1.5 + unit(random));  // rotary angles
    worst = std::max(worst, ulps(det_pow(base, -0.37), std::pow(static_cast<long double>(base), -0.37L)));
  }
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_LT(worst, 2.0);
}

TEST(MathTest, Pow_HoldsItsEdges) {
  EXPECT_EQ(det_pow(1.0, kInf), 1.0);
  EXPECT_EQ(det_pow(kInf, 0.0), 1.0);
  EXPECT_EQ(det_pow(0.0, 2.0), 0.0);
  EXPECT_EQ(det_pow(0.0, -2.0), kInf);
  EXPECT_EQ(det_pow(kInf, -2.0), 0.0);
  EXPECT_EQ(det_pow(2.0, 10.0), 1024.0);
  EXPECT_EQ(det_pow(2.0, kInf), kInf);
  EXPECT_EQ(det_pow(0.5, kInf), 0.0);
  EXPECT_EQ(det_pow(10.0, 400.0), kInf);
  EXPECT_EQ(det_pow(10.0, -400.0), 0.0);
  EXPECT_TRUE(std::isnan(det_pow(-2.0, 2.0)));
  EXPECT_TRUE(std::isnan(det_pow(2.0, std::nan(""))));
}

}  // namespace
}  // namespace weft
