#include "weft/kernels/elementwise.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "weft/base/math.h"
#include "weft/kernels/elementwise_reference.h"
#include "weft/kernels/scalar_math.h"
#include "weft/kernels/test_support.h"

namespace weft::kernels {
namespace {

using testing::bits_equal;
using testing::kBoth;
using testing::normal_floats;
using testing::Owned;

class Elementwise : public testing::Kernels {};

constexpr float kInf = std::numeric_limits<float>::infinity();

// Floats spread over all bit patterns, and the edges.
std::vector<float> many_floats(uint32_t step) {
  std::vector<float> x = {
      0.0f,          -0.0f,       1.0f,      -1.0f,   kInf,      -kInf,      88.72f,    88.73f,     89.0f,           127.5f,
      -87.33f,       -87.34f,     -88.0f,    -104.0f, 0x1p-126f, -0x1p-126f, 0x1p-130f, -0x1p-130f, 0x1.fffffep127f, NAN,
      0x1.6a09e6p0f, 0.99999994f, 1.0000001f};
  for (uint64_t bits = 0; bits < 0x100000000u; bits += step) x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  for (int i = -4000; i <= 4000; ++i) x.push_back(static_cast<float>(i) * 0.02213f);
  return x;
}

double ulp(double exact) {
  const float f = static_cast<float>(exact);
  return static_cast<double>(std::nextafter(std::abs(f), kInf)) - std::abs(static_cast<double>(f));
}

TEST_F(Elementwise, ExpAndLogHaveTheScalarBitsOnEveryTarget) {
  const std::vector<float> x = many_floats(40009);
  std::vector<float> e, l;
  for (const float v : x) {
    e.push_back(scalar::exp(v));
    l.push_back(scalar::log(v));
  }
  everywhere([&] {
    std::vector<float> y(x.size());
    vec_exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
    EXPECT_TRUE(bits_equal(y, e));
    vec_log(x.data(), y.data(), static_cast<int64_t>(x.size()));
    EXPECT_TRUE(bits_equal(y, l));
  });
}

TEST_F(Elementwise, ExpAndLogAreWithinTwoUlp) {
  std::vector<float> x = many_floats(20011);
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<float> y(x.size());
  vec_exp(x.data(), y.data(), n);
  double worst = 0;
  int64_t compared = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = det_exp(static_cast<double>(x[i]));
    if (!(exact >= 0x1.00001p-126 && exact < 0x1.fffffep127)) continue;
    worst = std::max(worst, std::abs(static_cast<double>(y[i]) - exact) / ulp(exact));
    ++compared;
  }
  EXPECT_LE(worst, 1.0);
  EXPECT_GT(compared, 50000);
  vec_log(x.data(), y.data(), n);
  worst = 0;
  compared = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!(x[i] >= 0x1p-126f) || x[i] == kInf || x[i] == 1.0f) continue;
    const double exact = det_log(static_cast<double>(x[i]));
    worst = std::max(worst, std::abs(static_cast<double>(y[i]) - exact) / ulp(exact));
    ++compared;
  }
  EXPECT_LE(worst, 1.0);
  EXPECT_GT(compared, 50000);
}

TEST_F(Elementwise, ExpAndLogEdges) {
  EXPECT_EQ(scalar::exp(0.0f), 1.0f);
  EXPECT_EQ(scalar::exp(-0.0f), 1.0f);
  EXPECT_EQ(std::bit_cast<uint32_t>(scalar::exp(-kInf)), 0u);
  EXPECT_EQ(std::bit_cast<uint32_t>(scalar::exp(-87.5f)), 0u);
  EXPECT_GT(scalar::exp(-87.33f), 0.0f);
  EXPECT_EQ(scalar::exp(88.8f), kInf);
  EXPECT_LT(scalar::exp(88.72f), kInf);
  EXPECT_TRUE(std::isnan(scalar::exp(NAN)));
  EXPECT_EQ(scalar::log(1.0f), 0.0f);
  EXPECT_EQ(scalar::log(0.0f), -kInf);
  EXPECT_EQ(scalar::log(0x1p-130f), -kInf);
  EXPECT_EQ(scalar::log(kInf), kInf);
  EXPECT_TRUE(std::isnan(scalar::log(-1.0f)));
}

TEST_F(Elementwise, ConversionsKeepTheScalarRounding) {
  const std::vector<float> x = many_floats(100003);
  std::vector<bf16> expected;
  for (const float f : x) expected.push_back(float_to_bf16(f));
  everywhere([&] {
    std::vector<bf16> y(x.size());
    convert(x.data(), y.data(), static_cast<int64_t>(x.size()));
    EXPECT_TRUE(std::equal(y.begin(), y.end(), expected.begin(), [](bf16 a, bf16 b) { return a.bits == b.bits; }));
    std::vector<float> back(x.size());
    convert(y.data(), back.data(), static_cast<int64_t>(x.size()));
    EXPECT_TRUE(bits_equal(back, testing::to_f32(expected)));
  });
}

TEST_F(Elementwise, SwigluHasTheReferenceBits) {
  for (const int64_t rows : {0, 1, 7})
    for (const int64_t cols : {1, 16, 83})
      for (const DType dtype : kBoth) {
        const Owned gate(DType::kF32, rows, cols, 1, 4.0f), up(DType::kF32, rows, cols, 2), dy(dtype, rows, cols, 3);
        Owned y(dtype, rows, cols), dg(dtype, rows, cols), du(dtype, rows, cols);
        reference::swiglu_forward(gate.c(), up.c(), y.m());
        reference::swiglu_backward(dy.c(), gate.c(), up.c(), dg.m(), du.m());
        everywhere([&] {
          Owned y2(dtype, rows, cols), dg2(dtype, rows, cols), du2(dtype, rows, cols);
          swiglu_forward(gate.c(), up.c(), y2.m());
          swiglu_backward(dy.c(), gate.c(), up.c(), dg2.m(), du2.m());
          EXPECT_TRUE(bits_equal(y, y2));
          EXPECT_TRUE(bits_equal(dg, dg2));
          EXPECT_TRUE(bits_equal(du, du2));
        });
      }
}

TEST_F(Elementwise, SwigluGradientsMatchFiniteDifferences) {
  const Owned gate(DType::kF32, 1, 40, 1, 3.0f), up(DType::kF32, 1, 40, 2), dy(DType::kF32, 1, 40, 3);
  Owned dg(DType::kF32, 1, 40), du(DType::kF32, 1, 40);
  swiglu_backward(dy.c(), gate.c(), up.c(), dg.m(), du.m());
  const auto f = [](double g, double u) { return g / (1.0 + det_exp(-g)) * u; };
  for (int64_t i = 0; i < 40; ++i) {
    const double g = gate.at(0, i), u = up.at(0, i), d = dy.at(0, i), h = 1e-6;
    EXPECT_NEAR(dg.at(0, i), d * (f(g + h, u) - f(g - h, u)) / (2 * h), 2e-6 * (1 + std::abs(d * u)));
    EXPECT_NEAR(du.at(0, i), d * f(g, 1.0), 2e-6 * (1 + std::abs(d)));
  }
}

TEST_F(Elementwise, AddAndAccumulate) {
  const std::vector<float> a = normal_floats(40003, 1), b = normal_floats(40003, 2);
  std::vector<float> expected(a.size());
  for (size_t i = 0; i < a.size(); ++i) expected[i] = a[i] + b[i];
  everywhere([&] {
    std::vector<float> y = a;
    add(y.data(), b.data(), y.data(), 40003);
    EXPECT_TRUE(bits_equal(y, expected));
    y = a;
    accumulate(view(b.data(), 1, 40003), y.data());
    EXPECT_TRUE(bits_equal(y, expected));
  });
}

TEST_F(Elementwise, EmbeddingReadsRowsAndAddsGradientsInTokenOrder) {
  const int64_t vocab = 11, h = 150;
  std::vector<int32_t> ids;
  for (int i = 0; i < 200; ++i) ids.push_back(static_cast<int32_t>(CounterRng(5).below(static_cast<uint64_t>(i), 11)));
  for (const DType dtype : kBoth) {
    const Owned table(dtype, vocab, h, 1), dy(dtype, 200, h, 2);
    const std::vector<float> start = normal_floats(vocab * h, 3);
    std::vector<float> expected = start;
    reference::embedding_backward(ids, dy.c(), expected.data());
    // The order matters: the same rows added from the last token up give other bits.
    std::vector<float> reversed = start;
    for (int64_t t = 199; t >= 0; --t)
      for (int64_t c = 0; c < h; ++c) reversed[static_cast<size_t>(ids[static_cast<size_t>(t)] * h + c)] += dy.at(t, c);
    EXPECT_FALSE(bits_equal(reversed, expected));
    everywhere([&] {
      std::vector<float> y(200 * static_cast<size_t>(h)), d = start;
      embedding_forward(ids, table.c(), y.data());
      for (int64_t t = 0; t < 200; ++t)
        for (int64_t c = 0; c < h; ++c) ASSERT_EQ(y[static_cast<size_t>(t * h + c)], table.at(ids[static_cast<size_t>(t)], c));
      embedding_backward(ids, dy.c(), d.data(), vocab);
      EXPECT_TRUE(bits_equal(d, expected));
    });
  }
}

}  // namespace
}  // namespace weft::kernels
