#include "weft/comm/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "weft/base/error.h"

namespace weft {
namespace {

std::vector<std::vector<float>> random_parts(int n, int64_t count) {
  std::mt19937 random(static_cast<unsigned>(n));
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> parts(static_cast<size_t>(n));
  for (auto& part : parts)
    for (int64_t i = 0; i < count; ++i) part.push_back(normal(random));
  return parts;
}

std::vector<float> joined(const std::vector<std::vector<float>>& parts, ReduceOp op) {
  std::vector<const std::byte*> pointers;
  for (const auto& part : parts) pointers.push_back(reinterpret_cast<const std::byte*>(part.data()));
  std::vector<float> out(parts[0].size());
  reduce_parts(pointers, reinterpret_cast<std::byte*>(out.data()), std::ssize(out), DType::kF32, op);
  return out;
}

TEST(Reduce, SplitsAtTheLargestPowerOfTwoBelow) {
  const int expected[] = {1, 2, 2, 4, 4, 4, 4, 8};
  for (int n = 2; n <= 9; ++n) EXPECT_EQ(reduce_split(n), expected[n - 2]) << n;
}

TEST(Reduce, TreeOfThreeFiveAndEightWrittenOut) {
  for (const int64_t count : {1, 1023, 1024, 1025, 5000}) {
    const auto p = random_parts(8, count);
    const auto three = joined({p[0], p[1], p[2]}, ReduceOp::kSum);
    const auto five = joined({p[0], p[1], p[2], p[3], p[4]}, ReduceOp::kSum);
    const auto eight = joined(p, ReduceOp::kSum);
    for (size_t i = 0; i < p[0].size(); ++i) {
      ASSERT_EQ(three[i], (p[0][i] + p[1][i]) + p[2][i]);
      ASSERT_EQ(five[i], ((p[0][i] + p[1][i]) + (p[2][i] + p[3][i])) + p[4][i]);
      ASSERT_EQ(eight[i], ((p[0][i] + p[1][i]) + (p[2][i] + p[3][i])) + ((p[4][i] + p[5][i]) + (p[6][i] + p[7][i])));
    }
  }
}

TEST(Reduce, InverseAnotherOrderGivesOtherBits) {
  const auto parts = random_parts(8, 1000);
  const auto tree = joined(parts, ReduceOp::kSum);
  int unequal = 0;
  for (size_t i = 0; i < tree.size(); ++i) {
    float running = 0;
    for (const auto& part : parts) running += part[i];
    unequal += running != tree[i];
  }
  EXPECT_GT(unequal, 200);  // of 1000; 0 would mean that the order cannot be seen
}

TEST(Reduce, HalvesAreRoundedOnceAtTheEnd) {
  // 1 + 2^-8 is a tie in bfloat16 and goes to even, 1; with three such parts the exact sum 2^-8 + 2^-8 + 1 rounds to 1 + 2^-7.
  const bf16 parts[3] = {float_to_bf16(0x1p-8f), float_to_bf16(0x1p-8f), float_to_bf16(1)};
  const std::byte* pointers[3];
  for (int i = 0; i < 3; ++i) pointers[i] = reinterpret_cast<const std::byte*>(&parts[i]);
  bf16 out{};
  reduce_parts(pointers, reinterpret_cast<std::byte*>(&out), 1, DType::kBF16, ReduceOp::kSum);
  EXPECT_EQ(bf16_to_float(out), 1 + 0x1p-7f);
  const uint16_t halves[2] = {0x3c00, 0x1400};  // 1 and 2^-10, the last bit of 1 in float16
  for (int i = 0; i < 2; ++i) pointers[i] = reinterpret_cast<const std::byte*>(&halves[i]);
  uint16_t half = 0;
  reduce_parts(std::span(pointers, 2), reinterpret_cast<std::byte*>(&half), 1, DType::kF16, ReduceOp::kSum);
  EXPECT_EQ(half, 0x3c01);
}

TEST(Reduce, NotANumberWins) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAvg})
    for (size_t at = 0; at < 3; ++at) {
      std::vector<std::vector<float>> parts(3, {1.0f});
      parts[at][0] = nan;
      EXPECT_TRUE(std::isnan(joined(parts, op)[0])) << to_string(op) << " " << at;
    }
}

TEST(Reduce, RefusesWhatHasNoMeaning) {
  EXPECT_THROW(check_reducible(DType::kI32, ReduceOp::kAvg), ValueError);
  EXPECT_THROW(check_reducible(DType::kBool, ReduceOp::kSum), ValueError);
  EXPECT_NO_THROW(check_reducible(DType::kBool, ReduceOp::kMax));
  EXPECT_NO_THROW(check_reducible(DType::kF16, ReduceOp::kAvg));
}

}  // namespace
}  // namespace weft
