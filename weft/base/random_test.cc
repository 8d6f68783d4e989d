#include "weft/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace weft {
namespace {

// splitmix64 as published: the state moves by the golden gamma, the output is the finaliser.
TEST(Random, Mix64IsSplitmix64) {
  EXPECT_EQ(mix64(0), 0u);
  EXPECT_EQ(mix64(kGoldenGamma), 0xe220a8397b1dcdafu);      // first output of seed 0
  EXPECT_EQ(mix64(2 * kGoldenGamma), 0x6e789e6aa1b965f4u);  // second
  EXPECT_EQ(mix64(3 * kGoldenGamma), 0x06c45d188009454fu);
}

TEST(Random, HashCombineSeesOrderNumberAndValueOfParts) {
  std::set<uint64_t> seen;
  for (uint64_t a = 0; a < 16; ++a)
    for (uint64_t b = 0; b < 16; ++b) {
      seen.insert(hash_combine(a, b));
      for (uint64_t c = 0; c < 16; ++c) seen.insert(hash_combine(a, b, c));
    }
  EXPECT_EQ(seen.size(), 16u * 16 + 16 * 16 * 16);
  EXPECT_EQ(hash_combine(1, 2, 3, 4), hash_combine(hash_combine(1, 2, 3), 4));
}

TEST(Random, UniformStaysInsideTheOpenInterval) {
  static_assert(uniform_from_bits(0) == 0x1p-24);
  static_assert(uniform_from_bits(~uint64_t{0}) == 1.0 - 0x1p-24);
  for (const uint64_t bits : {uint64_t{0}, ~uint64_t{0}, uint64_t{0x123456789abcdef0}}) {
    const double u = uniform_from_bits(bits);
    EXPECT_EQ(static_cast<double>(static_cast<float>(u)), u);
    EXPECT_EQ(uniform_from_bits(~bits), 1.0 - u);
  }
}

TEST(Random, UniformIsUniform) {
  const CounterRng rng(7);
  constexpr int kBins = 64, kDraws = 64 * 4096;
  std::vector<int> bins(kBins);
  for (uint64_t i = 0; i < kDraws; ++i) ++bins[static_cast<size_t>(rng.uniform01(i) * kBins)];
  double chi2 = 0;
  for (const int n : bins) chi2 += (n - 4096.0) * (n - 4096.0) / 4096.0;
  EXPECT_GT(chi2, 30);  // 63 degrees of freedom: mean 63, deviation 11
  EXPECT_LT(chi2, 110);
}

TEST(Random, NeighbouringKeysAndCountersAreUnrelated) {
  double same = 0;
  constexpr int kPairs = 4096;
  for (uint64_t i = 0; i < kPairs; ++i) {
    same += __builtin_popcountll(CounterRng(i).at(5) ^ CounterRng(i + 1).at(5));
    same += __builtin_popcountll(CounterRng(9).at(i) ^ CounterRng(9).at(i + 1));
    same += __builtin_popcountll(CounterRng(i).at(i + 1) ^ CounterRng(i + 1).at(i));
  }
  EXPECT_NEAR(same / (3 * kPairs), 32.0, 0.25);  // flipped bits of 64
}

TEST(Random, BelowCoversItsRange) {
  const CounterRng rng(3);
  std::vector<int> seen(7);
  for (uint64_t i = 0; i < 7000; ++i) ++seen.at(rng.below(i, 7));
  for (const int n : seen) EXPECT_NEAR(n, 1000, 150);
  EXPECT_EQ(rng.below(0, 1), 0u);
}

TEST(Random, NormalHasTheMomentsOfANormal) {
  const CounterRng rng(11);
  constexpr int kDraws = 200000;
  double s1 = 0, s2 = 0, s4 = 0, largest = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double x = rng.normal(i);
    s1 += x;
    s2 += x * x;
    s4 += x * x * x * x;
    largest = std::max(largest, std::fabs(x));
  }
  EXPECT_NEAR(s1 / kDraws, 0, 0.01);
  EXPECT_NEAR(s2 / kDraws, 1, 0.015);
  EXPECT_NEAR(s4 / kDraws, 3, 0.1);
  EXPECT_LT(largest, 5.9);
}

// Golden bits: a run's samples depend on them, so they never change.
TEST(Random, GoldenBits) {
  const CounterRng rng(42);
  EXPECT_EQ(rng.at(0), 0x02fea214f99903feu);
  EXPECT_EQ(rng.at(1), 0x9c3d2fd187823ca1u);
  EXPECT_EQ(CounterRng(0).at(0), 0x871b275e2c983e04u);
  EXPECT_EQ(hash_combine(1, 2), 0xbcd9dbb49673066bu);
  EXPECT_EQ(hash_combine(1, 2, 3), 0x970864d014d5e8efu);
  EXPECT_EQ(rng.uniform01(0), 0x1.7f518p-7);
  EXPECT_EQ(rng.normal(0), -0x1.dd4be1bc3d5f1p+0);
  EXPECT_EQ(rng.normal(1), -0x1.af14b250983b1p-1);
}

}  // namespace
}  // namespace weft
