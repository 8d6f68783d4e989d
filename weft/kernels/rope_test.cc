#include "weft/kernels/rope.h"

#include "weft/base/math.h"
#include "weft/kernels/rope_reference.h"
#include "weft/kernels/test_support.h"

namespace weft::kernels {
namespace {

using testing::bits_equal;
using testing::kBoth;
using testing::Owned;

class Rope : public testing::Kernels {};

struct Tables {
  std::vector<int32_t> positions;
  std::vector<float> inv_freq, cos, sin;
  Tables(int64_t tokens, int64_t half, double factor = 1.0) {
    for (int64_t t = 0; t < tokens; ++t) positions.push_back(static_cast<int32_t>(t * 37 % 5000));
    for (int64_t i = 0; i < half; ++i)
      inv_freq.push_back(static_cast<float>(det_pow(10000.0, -static_cast<double>(i) / static_cast<double>(half))));
    cos.resize(static_cast<size_t>(tokens * half));
    sin.resize(cos.size());
    rope_table(positions, inv_freq, factor, cos.data(), sin.data());
  }
};

TEST_F(Rope, HasTheReferenceBitsAndMayRunInPlace) {
  for (const int64_t tokens : {0, 1, 9})
    for (const int64_t half : {2, 16, 37})
      for (const DType in : kBoth)
        for (const DType out : kBoth)
          for (const int sign : {1, -1}) {
            const int64_t heads = 3;
            const Tables t(tokens, half);
            const Owned x(in, tokens, heads * 2 * half, 1);
            Owned y(out, tokens, heads * 2 * half);
            reference::rope_apply(x.c(), heads, t.cos.data(), t.sin.data(), sign, y.m());
            everywhere([&] {
              Owned y2(out, tokens, heads * 2 * half);
              rope_apply(x.c(), heads, t.cos.data(), t.sin.data(), sign, y2.m());
              EXPECT_TRUE(bits_equal(y, y2));
              if (in != out) return;
              Owned z = x;
              rope_apply(z.c(), heads, t.cos.data(), t.sin.data(), sign, z.m());
              EXPECT_TRUE(bits_equal(y, z));
            });
          }
}

TEST_F(Rope, TableHoldsTheAngleRoundedToFloat) {
  const Tables t(50, 8, 1.25);
  for (size_t r = 0; r < 50; ++r)
    for (size_t i = 0; i < 8; ++i) {
      const float angle = static_cast<float>(t.positions[r]) * t.inv_freq[i];
      EXPECT_NEAR(t.cos[r * 8 + i], 1.25 * std::cos(static_cast<double>(angle)), 1e-7);
      EXPECT_NEAR(t.sin[r * 8 + i], 1.25 * std::sin(static_cast<double>(angle)), 1e-7);
    }
}

TEST_F(Rope, TransposeUndoesTheRotation) {
  const Tables t(20, 16);
  const Owned x(DType::kF32, 20, 64, 1);
  Owned y(DType::kF32, 20, 64);
  rope_apply(x.c(), 2, t.cos.data(), t.sin.data(), 1, y.m());
  EXPECT_FALSE(bits_equal(x, y));
  rope_apply(y.c(), 2, t.cos.data(), t.sin.data(), -1, y.m());
  for (size_t i = 0; i < x.f.size(); ++i) EXPECT_NEAR(x.f[i], y.f[i], 1e-6);
}

// Inverse: a fused multiply-add, which the contract forbids here, changes bits.
TEST_F(Rope, FusedMultiplyAddWouldChangeBits) {
  const Tables t(20, 16);
  const Owned x(DType::kF32, 20, 32, 1);
  Owned y(DType::kF32, 20, 32);
  rope_apply(x.c(), 1, t.cos.data(), t.sin.data(), 1, y.m());
  int different = 0;
  for (int64_t r = 0; r < 20; ++r)
    for (int64_t i = 0; i < 16; ++i) {
      const auto k = static_cast<size_t>(r * 16 + i);
      different += y.at(r, i) != std::fma(x.at(r, i), t.cos[k], -(x.at(r, 16 + i) * t.sin[k]));
    }
  EXPECT_GT(different, 20);
}

}  // namespace
}  // namespace weft::kernels
