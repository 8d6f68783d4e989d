// Products with int8 weights (gemm.h): the scalar oracle's bits, and what the rule of scales is worth.
#include <algorithm>
#include <vector>

#include "weft/kernels/gemm.h"
#include "weft/kernels/gemm_reference.h"
#include "weft/kernels/quantize.h"
#include "weft/kernels/test_support.h"

namespace weft::kernels {
namespace {

using testing::bits_equal;
using testing::kBoth;
using testing::normal_floats;
using testing::Owned;

class GemmInt8 : public testing::Kernels {};

// Rows of weights [rows, k], quantised; one of them zeros.
struct Int8Rows {
  std::vector<int8_t> q;
  std::vector<float> scales;
  int64_t k;
  Int8Rows(int64_t rows, int64_t width, uint64_t seed) : q(static_cast<size_t>(rows * width)), k(width) {
    std::vector<float> w = normal_floats(rows * k, seed);
    if (rows > 2) std::fill_n(w.begin() + k, k, 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      scales.push_back(row_scale(max_magnitude(w.data() + r * k, k)));
      quantize(w.data() + r * k, scales.back(), q.data() + r * k, k);
    }
  }
  ConstMatrix matrix(int64_t rows) const { return {q.data(), DType::kI8, rows, k, k}; }
};

struct Int8Sizes {
  int64_t m, n, k;
};
constexpr Int8Sizes kSizes[] = {{0, 16, 64}, {1, 1, 1},     {1, 97, 1025}, {2, 64, 255},   {3, 40, 64},   {5, 15, 2}, {6, 16, 3},
                                {7, 17, 15}, {13, 33, 514}, {64, 97, 64},  {96, 17, 1025}, {40, 300, 15}, {5, 16, 0}};

TEST_F(GemmInt8, ForwardIsTheReferenceBitForBit) {
  int round = 0;
  for (const auto& [m, n, k] : kSizes)
    for (const DType dtype : kBoth)
      for (const Chain chain : {Chain::kSingle, Chain::kLeaves}) {
        const DType out = ++round % 3 ? DType::kF32 : DType::kBF16;
        const Owned x(dtype, m, k, 7);
        const Int8Rows w(n, k, 9);
        const std::vector<float> bias = normal_floats(n, 3);
        const float* b = round % 2 ? bias.data() : nullptr;
        Owned expected(out, m, n);
        gemm_reference(x.c(), w.matrix(n), b, expected.m(), chain, {}, w.scales.data());
        everywhere([&] {
          PackedWeight packed;
          packed.pack(w.q.data(), w.scales.data(), 1, n, k);
          Owned y(out, m, n);
          gemm(x.c(), packed, b, y.m(), chain);
          EXPECT_TRUE(bits_equal(y, expected)) << m << " " << n << " " << k << " " << dtype_name(dtype);
        });
      }
}

TEST_F(GemmInt8, GroupedIsTheReferenceBitForBit) {
  const int64_t experts = 4, n = 37, k = 129;
  const std::vector<int64_t> offsets = {0, 30, 30, 31, 95};
  const Int8Rows w(experts * n, k, 5);
  for (const DType dtype : kBoth) {
    const Owned x(dtype, 95, k, 6);
    Owned expected(dtype, 95, n);
    grouped_gemm_reference(x.c(), w.q.data(), DType::kI8, offsets, expected.m(), w.scales.data());
    everywhere([&] {
      PackedWeight packed;
      packed.pack(w.q.data(), w.scales.data(), experts, n, k);
      Owned y(dtype, 95, n);
      grouped_gemm(x.c(), packed, offsets, y.m());
      EXPECT_TRUE(bits_equal(y, expected));
    });
  }
}

// Ranks of a row-parallel cut hold columns and the scales of whole rows.
TEST_F(GemmInt8, LeavesOfRanksJoinToTheWhole) {
  const int64_t m = 5, n = 21, k = 131;
  const Owned x(DType::kF32, m, k, 1);
  const Int8Rows w(n, k, 2);
  Owned whole(DType::kF32, m, n);
  gemm_reference(x.c(), w.matrix(n), nullptr, whole.m(), Chain::kLeaves, {}, w.scales.data());
  everywhere([&] {
    std::vector<std::vector<float>> terms;
    for (int first = 0; first < kNumLeaves; first += 4) {
      const LeafSpan span{k, first, 4};
      const int64_t begin = leaf_begin(k, first), width = span.columns();
      std::vector<int8_t> part;
      Owned xs(DType::kF32, m, width), y(DType::kF32, m, n);
      for (int64_t r = 0; r < n; ++r) part.insert(part.end(), w.q.begin() + r * k + begin, w.q.begin() + r * k + begin + width);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t d = 0; d < width; ++d) xs.f[static_cast<size_t>(i * width + d)] = x.at(i, begin + d);
      PackedWeight packed;
      packed.pack(part.data(), w.scales.data(), 1, n, width);
      gemm_leaves(xs.c(), packed, span, y.m());
      terms.push_back(y.f);
    }
    for (size_t i = 0; i < terms[0].size(); ++i) EXPECT_EQ(terms[0][i] + terms[1][i], whole.f[i]);
  });
}

// Inverse: another order or place of the scale gives other bits, so the comparisons above see the rule.
TEST_F(GemmInt8, InverseOtherRulesGiveOtherBits) {
  const int64_t m = 5, n = 40, k = 257;
  const Owned x(DType::kBF16, m, k, 1);
  const Int8Rows w(n, k, 2);
  const auto product = [&](Chain chain, Order order) {
    Owned y(DType::kF32, m, n);
    gemm_reference(x.c(), w.matrix(n), nullptr, y.m(), chain, order, w.scales.data());
    return y;
  };
  EXPECT_FALSE(bits_equal(product(Chain::kLeaves, {}), product(Chain::kLeaves, {.scale_last = true})));
  EXPECT_FALSE(bits_equal(product(Chain::kLeaves, {}), product(Chain::kSingle, {})));
  EXPECT_FALSE(bits_equal(product(Chain::kSingle, {}), product(Chain::kSingle, {.reversed = true})));
  // Weights multiplied before the chain.
  Owned early(DType::kF32, n, k), y(DType::kF32, m, n);
  for (size_t i = 0; i < early.f.size(); ++i) early.f[i] = dequantized(w.q[i], w.scales[i / static_cast<size_t>(k)]);
  gemm_reference(x.c(), early.c(), nullptr, y.m());
  const Owned late = product(Chain::kSingle, {});
  EXPECT_FALSE(bits_equal(late, y));
  for (size_t i = 0; i < y.f.size(); ++i) EXPECT_NEAR(late.f[i], y.f[i], 1e-4);  // sums of 257 terms of about 1
}

}  // namespace
}  // namespace weft::kernels
