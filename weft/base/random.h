#pragma once
// Random numbers without state: each is a pure function of (key, counter), so who asks first, in which thread or in which
// company changes nothing. The same bits on every platform (integers, and weft/base/math.h instead of libm).

#include <cstdint>

namespace weft {

// A bijection of 64-bit words in which every input bit reaches every output bit (splitmix64's finaliser). mix64(0) == 0.
constexpr uint64_t mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  x ^= x >> 31;
  return x;
}

constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio

// A key from parts, e.g. (run seed, step, row). The order of the parts and their number matter.
constexpr uint64_t hash_combine(uint64_t a, uint64_t b) { return mix64(mix64(a + kGoldenGamma) + kGoldenGamma + b); }
template <typename... Rest>
constexpr uint64_t hash_combine(uint64_t a, uint64_t b, uint64_t c, Rest... rest) {
  return hash_combine(hash_combine(a, b), c, static_cast<uint64_t>(rest)...);
}

// 64 random bits as a number strictly between 0 and 1: an odd multiple of 2^-24, so it is exact as a float (24 significant
// bits), 0 and 1 never appear, and u and 1 - u are equally likely.
constexpr double uniform_from_bits(uint64_t bits) { return static_cast<double>((bits >> 41) * 2 + 1) * 0x1p-24; }

class CounterRng {
 public:
  explicit constexpr CounterRng(uint64_t key) : key_(hash_combine(key, 0)) {}

  // The 64 bits at `counter`.
  constexpr uint64_t at(uint64_t counter) const { return mix64(key_ ^ mix64((counter + 1) * kGoldenGamma)); }
  // In (0, 1), see uniform_from_bits.
  constexpr double uniform01(uint64_t counter) const { return uniform_from_bits(at(counter)); }
  // In [0, bound), without bias to speak of (2^-64 times bound). bound > 0.
  constexpr uint64_t below(uint64_t counter, uint64_t bound) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(at(counter)) * bound) >> 64);
  }
  // Standard normal (Box-Muller on two uniforms made from the counter; at most 5.9 away from 0).
  double normal(uint64_t counter) const;

 private:
  uint64_t key_;
};

}  // namespace weft
