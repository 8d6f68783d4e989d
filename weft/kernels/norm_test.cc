#include "weft/kernels/norm.h"

#include "weft/kernels/norm_reference.h"
#include "weft/kernels/scalar_math.h"
#include "weft/kernels/test_support.h"

namespace weft::kernels {
namespace {

using testing::bits_equal;
using testing::kBoth;
using testing::normal_floats;
using testing::Owned;

class Norm : public testing::Kernels {};

constexpr float kEps = 1e-6f;

TEST_F(Norm, ForwardHasTheReferenceBits) {
  for (const int64_t rows : {0, 1, 5, 130})
    for (const int64_t cols : {1, 16, 64, 91, 160}) {
      const Owned x(DType::kF32, rows, cols, 1, 2.0f);
      const std::vector<float> weight = normal_floats(cols, 2);
      Owned y(DType::kF32, rows, cols), yb(DType::kBF16, rows, cols);
      std::vector<float> rstd(static_cast<size_t>(rows));
      reference::rms_norm_forward(x.c(), weight.data(), kEps, yb.m(), rstd.data());
      reference::rms_norm_forward(x.c(), weight.data(), kEps, y.m(), rstd.data());
      everywhere([&] {
        Owned y2(DType::kF32, rows, cols), yb2(DType::kBF16, rows, cols);
        std::vector<float> rstd2(static_cast<size_t>(rows));
        rms_norm_forward(x.c(), weight.data(), kEps, y2.f.data(), yb2.b.data(), rstd2.data());
        EXPECT_TRUE(bits_equal(y, y2));
        EXPECT_TRUE(bits_equal(yb, yb2));
        EXPECT_TRUE(bits_equal(rstd, rstd2));
      });
    }
}

TEST_F(Norm, BackwardHasTheReferenceBits) {
  for (const int64_t rows : {0, 1, 256, 600})
    for (const int64_t cols : {16, 91}) {
      const Owned x(DType::kF32, rows, cols, 1, 2.0f);
      const std::vector<float> weight = normal_floats(cols, 2), start = normal_floats(rows * cols, 4),
                               start_w = normal_floats(cols, 5);
      Owned y(DType::kF32, rows, cols);
      std::vector<float> rstd(static_cast<size_t>(rows));
      reference::rms_norm_forward(x.c(), weight.data(), kEps, y.m(), rstd.data());
      for (const DType dtype : kBoth)
        for (const bool accumulate : {false, true}) {
          const Owned dy(dtype, rows, cols, 3);
          std::vector<float> dx = start, dw = start_w;
          reference::rms_norm_backward(dy.c(), x.c(), weight.data(), rstd.data(), dx.data(), accumulate, dw.data());
          everywhere([&] {
            std::vector<float> dx2 = start, dw2 = start_w;
            rms_norm_backward(dy.c(), x.c(), weight.data(), rstd.data(), dx2.data(), accumulate, dw2.data());
            EXPECT_TRUE(bits_equal(dx, dx2));
            EXPECT_TRUE(bits_equal(dw, dw2));
          });
        }
    }
}

TEST_F(Norm, MatchesDoubleAndFiniteDifferences) {
  const int64_t n = 40;
  const Owned x(DType::kF32, 1, n, 1, 2.0f), dy(DType::kF32, 1, n, 3);
  const std::vector<float> weight = normal_floats(n, 2);
  const auto y_of = [&](const std::vector<double>& row, int64_t i) {
    double sum = 0;
    for (const double v : row) sum += v * v;
    return row[static_cast<size_t>(i)] / std::sqrt(sum / static_cast<double>(n) + static_cast<double>(kEps)) *
           weight[static_cast<size_t>(i)];
  };
  std::vector<double> row(x.f.begin(), x.f.end());
  std::vector<float> y(n), rstd(1), dx(n), dw(n);
  rms_norm_forward(x.c(), weight.data(), kEps, y.data(), nullptr, rstd.data());
  rms_norm_backward(dy.c(), x.c(), weight.data(), rstd.data(), dx.data(), false, dw.data());
  const auto loss = [&](const std::vector<double>& at) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += y_of(at, i) * dy.at(0, i);
    return sum;
  };
  for (int64_t i = 0; i < n; ++i) {
    const auto k = static_cast<size_t>(i);
    EXPECT_NEAR(y[k], y_of(row, i), 1e-6 * (1 + std::abs(y_of(row, i))));
    EXPECT_NEAR(dw[k], dy.at(0, i) * y_of(row, i) / weight[k], 2e-6 * (1 + std::abs(dw[k])));
    std::vector<double> up = row, down = row;
    up[k] += 1e-5;
    down[k] -= 1e-5;
    EXPECT_NEAR(dx[k], (loss(up) - loss(down)) / 2e-5, 5e-6);
  }
}

// Inverse: with one running sum instead of sixteen lanes, some row gets other bits.
TEST_F(Norm, LaneOrderIsVisibleInTheBits) {
  const Owned x(DType::kF32, 64, 160, 1);
  const std::vector<float> weight(160, 1.0f);
  std::vector<float> y(64 * 160), rstd(64);
  rms_norm_forward(x.c(), weight.data(), kEps, y.data(), nullptr, rstd.data());
  int different = 0;
  for (int64_t r = 0; r < 64; ++r) {
    float sum = 0.0f;
    for (int64_t i = 0; i < 160; ++i) sum = std::fma(x.at(r, i), x.at(r, i), sum);
    different += rstd[static_cast<size_t>(r)] != 1.0f / std::sqrt(sum / 160.0f + kEps);
  }
  EXPECT_GT(different, 10);
}

}  // namespace
}  // namespace weft::kernels
