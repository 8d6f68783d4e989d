#include "weft/kernels/gemm.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/threads.h"
#include "weft/kernels/gemm_reference.h"

namespace weft::kernels {
namespace {

// Owns a matrix with `pad` elements after each row, which must keep their value.
struct Buffer {
  Buffer(DType dtype_in, int64_t rows_in, int64_t cols_in, uint32_t seed, int64_t pad = 0)
      : dtype(dtype_in), rows(rows_in), cols(cols_in), stride(cols_in + pad) {
    f.resize(static_cast<size_t>(rows * stride));
    uint32_t state = seed * 2654435761u + 12345u;
    for (float& v : f) {
      state = state * 1664525u + 1013904223u;
      v = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f + static_cast<float>(state >> 7 & 3) * 0.5f - 0.75f;
    }
    if (dtype == DType::kBF16)
      for (float v : f) h.push_back(float_to_bf16(v));
  }
  void* data() { return dtype == DType::kF32 ? static_cast<void*>(f.data()) : h.data(); }
  Matrix matrix() { return {data(), dtype, rows, cols, stride}; }
  std::vector<uint32_t> bits() const {
    std::vector<uint32_t> out;
    for (size_t i = 0; i < f.size(); ++i) out.push_back(dtype == DType::kF32 ? std::bit_cast<uint32_t>(f[i]) : h[i].bits);
    return out;
  }

  DType dtype;
  int64_t rows, cols, stride;
  std::vector<float> f;
  std::vector<bf16> h;
};

struct Case {
  int64_t m, n, k;
};

// Every value of interest of M, N and K, and pairs of them at block edges; the products stay small enough for scalar oracles.
// 96 x 1025 is more than the block of A that is kept, so its K is walked in groups.
constexpr Case kCases[] = {{0, 16, 64},   {1, 1, 1},     {1, 97, 1025}, {1, 33, 513}, {2, 64, 255},   {3, 40, 64},
                           {5, 15, 2},    {6, 16, 3},    {7, 17, 15},   {13, 33, 64}, {64, 97, 64},   {64, 15, 255},
                           {13, 97, 255}, {257, 1, 255}, {257, 17, 64}, {5, 16, 0},   {96, 17, 1025}, {13, 300, 15}};
constexpr DType kTypes[][2] = {
    {DType::kF32, DType::kF32}, {DType::kBF16, DType::kBF16}, {DType::kF32, DType::kBF16}, {DType::kBF16, DType::kF32}};

class GemmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    target_ = active_target();
    set_denormals_flushed();
  }
  void TearDown() override {
    force_target(target_);
    set_num_threads(0);
  }
  // Runs on each target, with thread counts that differ between them and both ends on the best one.
  static void everywhere(const std::function<void()>& body) {
    const std::vector<Target> targets = available_targets();
    for (size_t i = 0; i < targets.size(); ++i) {
      force_target(targets[i]);
      SCOPED_TRACE(target_name(targets[i]));
      set_num_threads(2);
      body();
      if (i + 1 < targets.size()) continue;
      for (int threads : {1, 3}) {
        set_num_threads(threads);
        body();
      }
    }
  }

  Target target_ = Target::kPortable;
};

std::string describe(Case c, DType a, DType b) {
  return fmt::format("M={} N={} K={} {} x {}", c.m, c.n, c.k, dtype_name(a), dtype_name(b));
}

TEST_F(GemmTest, Forward_IsTheReferenceBitForBit) {
  int round = 0;
  for (const Case c : kCases)
    for (const auto& types : kTypes)
      for (const Chain chain : {Chain::kSingle, Chain::kLeaves}) {
        ++round;
        SCOPED_TRACE(describe(c, types[0], types[1]));
        Buffer x(types[0], c.m, c.k, 1, round % 3 * 5), w(types[1], c.n, c.k, 2), bias(DType::kF32, 1, c.n, 3);
        const float* b = round % 2 ? bias.f.data() : nullptr;
        Buffer expected(round % 3 == 1 ? DType::kBF16 : DType::kF32, c.m, c.n, 4, round % 4);
        const Buffer untouched = expected;
        gemm_reference(x.matrix(), w.matrix(), b, expected.matrix(), chain);
        everywhere([&] {
          PackedWeight packed;
          packed.pack(w.data(), w.dtype, 1, c.n, c.k);
          Buffer y = untouched;
          gemm(x.matrix(), packed, b, y.matrix(), chain);
          ASSERT_EQ(y.bits(), expected.bits()) << (chain == Chain::kLeaves ? "leaves" : "single");
        });
        if (HasFatalFailure()) return;
      }
}

TEST_F(GemmTest, Columns_AreThatSliceOfTheWholeProduct) {
  const Case c{37, 83, 65};
  for (const auto& types : kTypes) {
    SCOPED_TRACE(describe(c, types[0], types[1]));
    Buffer x(types[0], c.m, c.k, 1), w(types[1], c.n, c.k, 2), whole(DType::kF32, c.m, c.n, 3);
    gemm_reference(x.matrix(), w.matrix(), nullptr, whole.matrix(), Chain::kSingle);
    everywhere([&] {
      PackedWeight packed;
      packed.pack(w.data(), w.dtype, 1, c.n, c.k);
      for (const auto& [first, n] : {std::pair<int64_t, int64_t>{0, 83}, {16, 64}, {48, 35}, {80, 3}, {32, 0}}) {
        Buffer y(DType::kF32, c.m, n, 4, 3);
        gemm_columns(x.matrix(), packed, first, y.matrix());
        for (int64_t i = 0; i < c.m; ++i)
          for (int64_t j = 0; j < n; ++j)
            ASSERT_EQ(std::bit_cast<uint32_t>(y.f[static_cast<size_t>(i * y.stride + j)]),
                      std::bit_cast<uint32_t>(whole.f[static_cast<size_t>(i * c.n + first + j)]))
                << first << " + " << j;
      }
      Buffer y(DType::kF32, c.m, 16, 4);
      EXPECT_THROW(gemm_columns(x.matrix(), packed, 8, y.matrix()), InternalError);
      EXPECT_THROW(gemm_columns(x.matrix(), packed, 80, y.matrix()), InternalError);
    });
  }
}

TEST_F(GemmTest, InputGrad_IsTheReferenceBitForBit) {
  int round = 0;
  for (const Case c : kCases)
    for (const auto& types : kTypes) {
      ++round;
      SCOPED_TRACE(describe(c, types[0], types[1]));
      // N is contracted: the long dim of the case.
      Buffer dy(types[0], c.m, c.k, 1, round % 3 * 5), w(types[1], c.k, c.n, 2);
      const bool accumulate = round % 3 == 2;
      Buffer expected(round % 3 == 1 ? DType::kBF16 : DType::kF32, c.m, c.n, 4, round % 4);
      const Buffer untouched = expected;
      gemm_input_grad_reference(dy.matrix(), w.matrix(), expected.matrix(), accumulate);
      everywhere([&] {
        Buffer dx = untouched;
        gemm_input_grad(dy.matrix(), w.matrix(), dx.matrix(), accumulate);
        ASSERT_EQ(dx.bits(), expected.bits()) << "accumulate " << accumulate;
      });
      if (HasFatalFailure()) return;
    }
}

TEST_F(GemmTest, WeightGrad_IsTheReferenceBitForBit) {
  int round = 0;
  for (const Case c : kCases)
    for (const auto& types : kTypes) {
      ++round;
      SCOPED_TRACE(describe(c, types[0], types[1]));
      // Tokens are contracted: the long dim of the case.
      Buffer dy(types[0], c.k, c.m, 1, round % 3 * 5), x(types[1], c.k, c.n, 2, round % 2 * 3),
          expected(DType::kF32, c.m, c.n, 4);
      const Buffer before = expected;
      gemm_weight_grad_reference(dy.matrix(), x.matrix(), expected.f.data());
      everywhere([&] {
        Buffer dw = before;
        gemm_weight_grad(dy.matrix(), x.matrix(), dw.f.data());
        ASSERT_EQ(dw.bits(), expected.bits());
      });
      if (HasFatalFailure()) return;
    }
}

TEST_F(GemmTest, BiasGrad_IsTheReferenceBitForBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t rows : {0, 1, 255, 256, 257, 600})
      for (const int64_t cols : {1, 16, 33, 300}) {
        Buffer dy(dtype, rows, cols, 7, 3), expected(DType::kF32, 1, cols, 8);
        const Buffer before = expected;
        gemm_bias_grad_reference(dy.matrix(), expected.f.data());
        everywhere([&] {
          Buffer dbias = before;
          gemm_bias_grad(dy.matrix(), dbias.f.data());
          ASSERT_EQ(dbias.bits(), expected.bits()) << rows << " x " << cols;
        });
      }
}

TEST_F(GemmTest, Grouped_IsTheReferenceWhateverTheSplit) {
  constexpr int64_t kN = 33, kK = 70;
  const std::vector<std::vector<int64_t>> splits = {{0, 0, 0, 0, 0},   {0, 0, 41, 41, 41}, {0, 1, 8, 8, 41},
                                                    {0, 0, 0, 0, 300}, {0, 7, 14, 20, 27}, {0, 270, 271, 290, 300}};
  for (const auto& offsets : splits)
    for (const auto& types : kTypes) {
      const int64_t m = offsets.back();
      SCOPED_TRACE(describe({m, kN, kK}, types[0], types[1]));
      Buffer x(types[0], m, kK, 1, 2), dy(types[0], m, kN, 2, 1), w(types[1], 4 * kN, kK, 3);
      Buffer y(DType::kF32, m, kN, 4), dx(DType::kBF16, m, kK, 5), dw(DType::kF32, 4 * kN, kK, 6);
      const Buffer dw_before = dw;
      Buffer x2(types[1], m, kK, 9);
      grouped_gemm_reference(x.matrix(), w.data(), w.dtype, offsets, y.matrix());
      grouped_gemm_input_grad_reference(dy.matrix(), w.data(), w.dtype, offsets, dx.matrix());
      grouped_gemm_weight_grad_reference(dy.matrix(), x2.matrix(), offsets, dw.f.data());
      everywhere([&] {
        PackedWeight packed;
        packed.pack(w.data(), w.dtype, 4, kN, kK);
        Buffer y2(DType::kF32, m, kN, 14), dx2(DType::kBF16, m, kK, 15), dw2 = dw_before;
        grouped_gemm(x.matrix(), packed, offsets, y2.matrix());
        ASSERT_EQ(y2.bits(), y.bits());
        grouped_gemm_input_grad(dy.matrix(), w.data(), w.dtype, offsets, dx2.matrix());
        ASSERT_EQ(dx2.bits(), dx.bits());
        grouped_gemm_weight_grad(dy.matrix(), x2.matrix(), offsets, dw2.f.data());
        ASSERT_EQ(dw2.bits(), dw.bits());
      });
      if (HasFatalFailure()) return;
    }
}

TEST_F(GemmTest, Forward_RowsDoNotDependOnTheBatch) {
  constexpr int64_t kM = 512, kN = 97, kK = 1025;
  for (const auto& types : kTypes)
    for (const Chain chain : {Chain::kSingle, Chain::kLeaves}) {
      Buffer x(types[0], kM, kK, 1), w(types[1], kN, kK, 2), all(DType::kF32, kM, kN, 0);
      PackedWeight packed;
      packed.pack(w.data(), w.dtype, 1, kN, kK);
      gemm(x.matrix(), packed, nullptr, all.matrix(), chain);
      for (const int64_t count : {1, 2, 5, 6, 7, 14, 99})
        for (const int64_t first : {int64_t{0}, int64_t{201}, kM - count}) {
          Buffer part(DType::kF32, count, kN, 0);
          Matrix rows = x.matrix();
          rows.data = static_cast<char*>(rows.data) + first * kK * dtype_bytes(x.dtype);
          rows.rows = count;
          gemm(rows, packed, nullptr, part.matrix(), chain);
          ASSERT_EQ(0, std::memcmp(part.f.data(), all.f.data() + first * kN, part.f.size() * sizeof(float)))
              << count << " rows from " << first;
        }
    }
}

// A row-parallel cut: each rank sums its own leaves, the partial sums meet in the same tree. Cut at ceil chunks they do not.
TEST_F(GemmTest, Leaves_AreWhatShardsSum) {
  constexpr int64_t kM = 9, kN = 20;
  for (const DType dtype : {DType::kBF16, DType::kF32})
    for (const int64_t k : {5, 50, 96, 1025}) {
      Buffer x(dtype, kM, k, 1), w(dtype, kN, k, 2);
      Buffer whole(DType::kF32, kM, kN, 0);
      PackedWeight packed;
      packed.pack(w.data(), w.dtype, 1, kN, k);
      gemm(x.matrix(), packed, nullptr, whole.matrix(), Chain::kLeaves);
      const auto columns = [&](const Buffer& from, int64_t rows, int64_t begin, int64_t size) {
        Buffer slice(dtype, rows, size, 0);
        for (int64_t i = 0; i < rows * size; ++i) {
          const size_t to = static_cast<size_t>(i), at = static_cast<size_t>(i / size * k + begin + i % size);
          if (dtype == DType::kF32) slice.f[to] = from.f[at];
          else slice.h[to] = from.h[at];
        }
        return slice;
      };
      for (const int ranks : {1, 2, 4, 8}) {
        std::vector<Buffer> sums;
        for (int r = 0; r < ranks; ++r) {
          const LeafSpan span{k, r * kNumLeaves / ranks, kNumLeaves / ranks};
          const int64_t begin = leaf_begin(k, span.first);
          Buffer own_x = columns(x, kM, begin, span.columns()), own_w = columns(w, kN, begin, span.columns());
          packed.pack(own_w.data(), own_w.dtype, 1, kN, span.columns());
          sums.emplace_back(DType::kF32, kM, kN, 0);
          gemm_leaves(own_x.matrix(), packed, span, sums.back().matrix());
        }
        for (size_t half = 1; half < sums.size(); half *= 2)
          for (size_t i = 0; i < sums.size(); i += 2 * half)
            for (size_t j = 0; j < sums[i].f.size(); ++j) sums[i].f[j] = sums[i].f[j] + sums[i + half].f[j];
        EXPECT_EQ(sums[0].bits(), whole.bits()) << k << " on " << ranks;
      }
    }
}

TEST_F(GemmTest, LeafBegin_CutsInPairsAndCoversK) {
  for (int64_t k = 0; k < 200; ++k) {
    EXPECT_EQ(leaf_begin(k, 0), 0);
    EXPECT_EQ(leaf_begin(k, kNumLeaves), k);
    for (int leaf = 0; leaf < kNumLeaves; ++leaf) {
      EXPECT_EQ(leaf_begin(k, leaf) % 2, 0);
      EXPECT_LE(leaf_begin(k, leaf), leaf_begin(k, leaf + 1));
    }
  }
}

// The inverse tests: each rule, switched off in the oracle, changes bits; else the comparisons above would prove nothing.
TEST_F(GemmTest, Inverse_EachRuleOfTheForwardOrderIsSeen) {
  constexpr int64_t kM = 8, kN = 24, kK = 130;
  Buffer w32(DType::kF32, kN, kK, 2), x32(DType::kF32, kM, kK, 1), w16(DType::kBF16, kN, kK, 2), x16(DType::kBF16, kM, kK, 1);
  const auto run = [&](Buffer& x, Buffer& w, Chain chain) {
    PackedWeight packed;
    packed.pack(w.data(), w.dtype, 1, kN, kK);
    Buffer y(DType::kF32, kM, kN, 0);
    gemm(x.matrix(), packed, nullptr, y.matrix(), chain);
    return y.bits();
  };
  const auto oracle = [&](Buffer& x, Buffer& w, Chain chain, Order order) {
    Buffer y(DType::kF32, kM, kN, 0);
    gemm_reference(x.matrix(), w.matrix(), nullptr, y.matrix(), chain, order);
    return y.bits();
  };
  Order reversed, even_first, ceil_leaves, left_to_right;
  reversed.reversed = even_first.even_first = ceil_leaves.ceil_leaves = left_to_right.left_to_right = true;
  EXPECT_NE(run(x32, w32, Chain::kSingle), oracle(x32, w32, Chain::kSingle, reversed));
  EXPECT_NE(run(x16, w16, Chain::kSingle), oracle(x16, w16, Chain::kSingle, even_first));
  EXPECT_NE(run(x32, w32, Chain::kLeaves), oracle(x32, w32, Chain::kLeaves, ceil_leaves));
  EXPECT_NE(run(x32, w32, Chain::kLeaves), oracle(x32, w32, Chain::kLeaves, left_to_right));
  EXPECT_NE(run(x32, w32, Chain::kLeaves), run(x32, w32, Chain::kSingle));
}

TEST_F(GemmTest, Inverse_GradientChainsAreSeen) {
  constexpr int64_t kDepth = 600, kRows = 6, kCols = 20;
  Buffer a(DType::kF32, kRows, kDepth, 1), a_columns(DType::kF32, kDepth, kRows, 1), b(DType::kF32, kDepth, kCols, 2);
  Order one_chain;
  one_chain.input_grad_chain = one_chain.weight_grad_chain = kDepth;
  Buffer dx(DType::kF32, kRows, kCols, 0), dx_one = dx, dw = dx, dw_one = dx;
  gemm_input_grad(a.matrix(), b.matrix(), dx.matrix());
  gemm_input_grad_reference(a.matrix(), b.matrix(), dx_one.matrix(), false, one_chain);
  EXPECT_NE(dx.bits(), dx_one.bits());
  gemm_weight_grad(a_columns.matrix(), b.matrix(), dw.f.data());
  gemm_weight_grad_reference(a_columns.matrix(), b.matrix(), dw_one.f.data(), one_chain);
  EXPECT_NE(dw.bits(), dw_one.bits());
  Order even_first;
  even_first.even_first = true;
  Buffer a16(DType::kBF16, kRows, kDepth, 1), b16(DType::kBF16, kDepth, kCols, 2);
  gemm_input_grad(a16.matrix(), b16.matrix(), dx.matrix());
  gemm_input_grad_reference(a16.matrix(), b16.matrix(), dx_one.matrix(), false, even_first);
  EXPECT_NE(dx.bits(), dx_one.bits());
}

TEST_F(GemmTest, PackedWeight_IsRebuiltInPlace) {
  PackedWeight packed;
  EXPECT_TRUE(packed.empty());
  Buffer x(DType::kF32, 3, 40, 1);
  for (const uint32_t seed : {2u, 3u}) {
    Buffer w(DType::kF32, 20, 40, seed), y(DType::kF32, 3, 20, 0), expected = y;
    packed.pack(w.data(), w.dtype, 1, 20, 40);
    gemm(x.matrix(), packed, nullptr, y.matrix());
    gemm_reference(x.matrix(), w.matrix(), nullptr, expected.matrix());
    EXPECT_EQ(y.bits(), expected.bits());
  }
  EXPECT_EQ(packed.n(), 20);
  EXPECT_EQ(packed.k(), 40);
  EXPECT_EQ(packed.bytes(), 2 * 16 * 40 * 4);
  packed.clear();
  EXPECT_TRUE(packed.empty());
}

TEST_F(GemmTest, Shapes_ThatDoNotFitAreRefused) {
  Buffer w(DType::kF32, 4, 6, 1), x(DType::kF32, 2, 5, 2), y(DType::kF32, 2, 4, 3);
  PackedWeight packed;
  packed.pack(w.data(), w.dtype, 1, 4, 6);
  EXPECT_THROW(gemm(x.matrix(), packed, nullptr, y.matrix()), InternalError);
  Buffer x6(DType::kF32, 2, 6, 2);
  EXPECT_THROW(grouped_gemm(x6.matrix(), packed, std::vector<int64_t>{0, 1}, y.matrix()), InternalError);
  EXPECT_THROW(packed.pack(w.data(), DType::kF16, 1, 4, 6), InternalError);
}

}  // namespace
}  // namespace weft::kernels
