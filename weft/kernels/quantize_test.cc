#include "weft/kernels/quantize.h"

#include <algorithm>
#include <limits>

#include "weft/kernels/quantize_reference.h"
#include "weft/kernels/test_support.h"

namespace weft::kernels {
namespace {

using testing::normal_floats;

class Quantize : public testing::Kernels {};

constexpr int64_t kSizes[] = {0, 1, 2, 7, 15, 16, 17, 31, 32, 33, 100, 255, 1024, 4099};
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST_F(Quantize, EveryTargetHasTheScalarBits) {
  for (const float size : {1.0f, 1e-3f, 3e30f, 1e-30f, 1e-37f, 2e-39f})
    for (const int64_t n : kSizes) {
      std::vector<float> x = normal_floats(n + 1, static_cast<uint64_t>(n), size);
      if (n > 3) x[2] = 0.0f, x[3] = -0.0f;
      const float* from = x.data() + 1;  // anywhere in memory
      const float most = reference::max_magnitude(from, n), scale = row_scale(most);
      std::vector<int8_t> expected(static_cast<size_t>(n) + 1, 99);
      reference::quantize(from, scale, expected.data(), n);
      everywhere([&] {
        EXPECT_EQ(max_magnitude(from, n), most);
        std::vector<int8_t> q(static_cast<size_t>(n) + 1, 99);
        quantize(from, scale, q.data(), n);
        EXPECT_EQ(q, expected) << n << " of about " << size;
      });
    }
}

// With a scale that is a power of two every quotient and tie is exact: q is known without the rule's own arithmetic.
TEST_F(Quantize, ClosedForm) {
  std::vector<float> x;
  std::vector<int8_t> expected;
  const float scale = 0x1p-9f;
  for (int half = -254; half <= 254; ++half) {  // k / 2 scales: odd ones are ties, to the even neighbour
    x.push_back(static_cast<float>(half) * 0.5f * scale);
    const int below = (half - (half & 1)) / 2;
    expected.push_back(static_cast<int8_t>(half % 2 == 0 ? half / 2 : below % 2 == 0 ? below : below + 1));
  }
  everywhere([&] {
    EXPECT_EQ(max_magnitude(x.data(), std::ssize(x)), 127.0f * scale);
    EXPECT_EQ(row_scale(127.0f * scale), scale);
    std::vector<int8_t> q(x.size());
    quantize(x.data(), scale, q.data(), std::ssize(x));
    EXPECT_EQ(q, expected);
  });
}

TEST_F(Quantize, TheErrorIsHalfAStepAtMost) {
  double worst = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> x = normal_floats(3000, seed, seed % 2 ? 0.02f : 40.0f);
    const float scale = row_scale(max_magnitude(x.data(), 3000));
    std::vector<int8_t> q(x.size());
    quantize(x.data(), scale, q.data(), 3000);
    for (size_t i = 0; i < x.size(); ++i) {
      const double s = scale;
      worst = std::max(worst, std::abs(static_cast<double>(x[i]) - s * q[i]) / s);
    }
    EXPECT_EQ(
        std::abs(static_cast<int>(*std::max_element(q.begin(), q.end(), [](int a, int b) { return std::abs(a) < std::abs(b); }))),
        127);
  }
  EXPECT_LE(worst, 0.5 + 0x1p-18);
  EXPECT_GT(worst, 0.499);
}

TEST_F(Quantize, RowsOfZerosAndWhatIsNotFinite) {
  EXPECT_EQ(row_scale(0.0f), 0.0f);
  EXPECT_EQ(row_scale(126.0f * 0x1p-126f), 0.0f);
  EXPECT_EQ(row_scale(127.0f * 0x1p-126f), 0x1p-126f);
  EXPECT_EQ(row_scale(std::numeric_limits<float>::max()), std::numeric_limits<float>::max() / 127.0f);
  const std::vector<float> tiny(40, 1e-39f);
  everywhere([&] {
    std::vector<int8_t> q(40, 5);
    quantize(tiny.data(), row_scale(max_magnitude(tiny.data(), 40)), q.data(), 40);
    EXPECT_EQ(q, std::vector<int8_t>(40, 0));
    for (const size_t at : {0, 15, 16, 39}) {
      std::vector<float> x = normal_floats(40, 3);
      x[at] = -kInf;
      EXPECT_EQ(max_magnitude(x.data(), 40), kInf);
      x[at == 0 ? 20 : 0] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(std::isnan(max_magnitude(x.data(), 40))) << "NaN is above Infinity, wherever they stand";
    }
  });
}

}  // namespace
}  // namespace weft::kernels
