#include "weft/base/math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace weft {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kLog2E = 0x1.71547652b82fep+0;
// ln 2 with 32 leading bits in kLn2High, so that n * kLn2High is exact for the exponents that occur.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Mid = 0x1.a39ef35793c76p-33;
constexpr double kLn2Low = 0x1.cc01f97b57a08p-87;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
constexpr double kHalfPiHigh = 0x1.921fb54442d18p+0;
constexpr double kHalfPiMid = 0x1.1a62633145c07p-54;
constexpr double kHalfPiLow = -0x1.f1976b7ed8fbcp-110;
constexpr double kTrigLimit = 0x1p45;

// An unevaluated sum; |low| is at most half an ulp of high.
struct Pair {
  double high;
  double low;
};

// a + b exactly, for |a| >= |b| or a == 0.
Pair fast_sum(double a, double b) {
  const double s = a + b;
  return {s, b - (s - a)};
}

Pair sum(double a, double b) {
  const double s = a + b;
  const double t = s - a;
  return {s, (a - (s - t)) + (b - t)};
}

Pair product(double a, double b) {
  const double p = a * b;
  return {p, std::fma(a, b, -p)};
}

Pair product(Pair a, Pair b) {
  const Pair p = product(a.high, b.high);
  return fast_sum(p.high, p.low + (a.high * b.low + a.low * b.high));
}

// Nearest integer by the rounding of the addition itself; |x| < 2^51.
double nearest(double x) {
  constexpr double kShift = 0x1.8p52;
  return (x + kShift) - kShift;
}

double power_of_two(int64_t n) { return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52); }

double scale(double x, int64_t n) {
  if (n > 1023) return x * 0x1p1023 * power_of_two(n - 1023);
  if (n < -1022) return x * power_of_two(n + 600) * 0x1p-600;  // the first product is exact: one rounding
  return x * power_of_two(n);
}

// e^(high + low)
double exp_of(double high, double low) {
  if (high != high) return high;
  if (high > 710.0) return kInf;
  if (high < -746.0) return 0.0;
  const double n = nearest(high * kLog2E);
  const double rest = high - n * kLn2High;
  const double correction = n * kLn2Mid - low;
  const double r = rest - correction;
  const double r_low = (rest - r) - correction;
  constexpr double kCoefficients[] = {1.0 / 87178291200.0,
                                      1.0 / 6227020800.0,
                                      1.0 / 479001600.0,
                                      1.0 / 39916800.0,
                                      1.0 / 3628800.0,
                                      1.0 / 362880.0,
                                      1.0 / 40320.0,
                                      1.0 / 5040.0,
                                      1.0 / 720.0,
                                      1.0 / 120.0,
                                      1.0 / 24.0,
                                      1.0 / 6.0,
                                      0.5};
  double p = 0.0;
  for (double c : kCoefficients) p = p * r + c;
  return scale(1.0 + (r + (r_low + r * r * p)), static_cast<int64_t>(n));
}

// x = m * 2^exponent with m in [sqrt(1/2), sqrt(2)); x is positive and finite.
double split_exponent(double x, int64_t* exponent) {
  int64_t shift = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    shift = -54;
  }
  const auto bits = std::bit_cast<uint64_t>(x);
  int64_t e = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (m > 0x1.6a09e667f3bcdp+0) {
    m *= 0.5;
    e += 1;
  }
  *exponent = e + shift;
  return m;
}

// Coefficients of 2 atanh(s) / s - 2 in s^2, highest power first; the term of s^2 is in log_of.
constexpr double kAtanh[] = {2.0 / 25, 2.0 / 23, 2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15,
                             2.0 / 13, 2.0 / 11, 2.0 / 9,  2.0 / 7,  2.0 / 5};

// log of a positive finite x to about 2^-64 relative: log m = 2 s + (2/3) s^3 + ..., s = (m - 1) / (m + 1).
Pair log_of(double x) {
  int64_t exponent = 0;
  const double m = split_exponent(x, &exponent);
  const double f = m - 1.0;  // exact
  const Pair g = sum(m, 1.0);
  const double s_high = f / g.high;
  const Pair s = fast_sum(s_high, (std::fma(-s_high, g.high, f) - s_high * g.low) / g.high);
  const Pair square = product(s, s);
  double tail = 0.0;
  for (double c : kAtanh) tail = tail * square.high + c;
  constexpr Pair kTwoThirds{0x1.5555555555555p-1, 0x1.5555555555555p-55};
  const Pair cube = product(product(square, s), kTwoThirds);
  const double fifth = square.high * square.high * s.high * tail;
  Pair result = fast_sum(2.0 * s.high, cube.high);
  result = fast_sum(result.high, result.low + (2.0 * s.low + (cube.low + fifth)));
  const auto k = static_cast<double>(exponent);
  const Pair mid = product(k, kLn2Mid);
  const Pair whole = sum(k * kLn2High, mid.high);
  const Pair total = sum(whole.high, result.high);
  return fast_sum(total.high, total.low + (whole.low + (mid.low + k * kLn2Low) + result.low));
}

// x = n * pi/2 + r, |r| <= pi/4 (a little more at the edges); returns n mod 4.
int reduce(double x, Pair* r) {
  const double n = nearest(x * kTwoOverPi);
  const double first = std::fma(-n, kHalfPiHigh, x);  // exact: a multiple of ulp(x) or 2^-52, below 1
  const Pair mid = product(n, kHalfPiMid);
  const Pair high = sum(first, -mid.high);
  *r = fast_sum(high.high, high.low - (mid.low + n * kHalfPiLow));
  return static_cast<int>(static_cast<int64_t>(n) & 3);
}

double sin_of(Pair r) {
  constexpr double kCoefficients[] = {1.0 / 355687428096000.0, -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0,
                                      1.0 / 362880.0,          -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
  const double z = r.high * r.high;
  double p = 0.0;
  for (double c : kCoefficients) p = p * z + c;
  return r.high + (r.low * (1.0 - 0.5 * z) + r.high * z * p);
}

double cos_of(Pair r) {
  constexpr double kCoefficients[] = {-1.0 / 6402373705728000.0, 1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0,
                                      -1.0 / 3628800.0,          1.0 / 40320.0,          -1.0 / 720.0,         1.0 / 24.0};
  const double z = r.high * r.high;
  double p = 0.0;
  for (double c : kCoefficients) p = p * z + c;
  const double half = 0.5 * z;
  const double w = 1.0 - half;
  return w + (((1.0 - w) - half) + (z * z * p - r.high * r.low));
}

}  // namespace

double det_exp(double x) { return exp_of(x, 0.0); }

double det_log(double x) {
  if (x != x || x == kInf) return x;
  if (x == 0.0) return -kInf;
  if (x < 0.0) return kNan;
  return log_of(x).high;
}

double det_sin(double x) {
  if (!(x > -kTrigLimit && x < kTrigLimit)) return kNan;
  if (x > -0x1p-27 && x < 0x1p-27) return x;  // keeps the sign of zero and denormals
  Pair r{};
  switch (reduce(x, &r)) {
    case 0: return sin_of(r);
    case 1: return cos_of(r);
    case 2: return -sin_of(r);
    default: return -cos_of(r);
  }
}

double det_cos(double x) {
  if (!(x > -kTrigLimit && x < kTrigLimit)) return kNan;
  Pair r{};
  switch (reduce(x, &r)) {
    case 0: return cos_of(r);
    case 1: return -sin_of(r);
    case 2: return -cos_of(r);
    default: return sin_of(r);
  }
}

double det_pow(double x, double y) {
  if (x == 1.0 || y == 0.0) return 1.0;
  if (x != x || y != y || x < 0.0) return kNan;
  if (x == 0.0 || x == kInf) return (x == 0.0) == (y > 0.0) ? 0.0 : kInf;
  if (y == kInf || y == -kInf) return (x > 1.0) == (y > 0.0) ? kInf : 0.0;
  const Pair log = log_of(x);
  const double high = y * log.high;
  if (high > 800.0) return kInf;
  if (high < -800.0) return 0.0;
  const Pair exact = product(y, log.high);
  return exp_of(exact.high, exact.low + y * log.low);
}

}  // namespace weft
