#pragma once
// Keys of element_hash.h: odd, so that no change of one element is lost, and random: a table for the place in a block of
// elements, and a word of the block, which are joined by exclusive or (internal).

#include <array>
#include <cstddef>
#include <cstdint>

#include "weft/base/random.h"

namespace weft::kernels {

inline constexpr int64_t kHashBlock = 1024;  // elements

constexpr uint64_t hash_key_of_place(int64_t place) { return mix64((static_cast<uint64_t>(place) + 1) * kGoldenGamma) | 1; }
constexpr uint64_t hash_key_of_block(int64_t block) { return hash_combine(1, static_cast<uint64_t>(block)) & ~uint64_t{1}; }

// The table's halves, for machines that multiply 32 bits at a time.
struct HashKeys {
  alignas(64) std::array<uint32_t, kHashBlock> low, high;
};
inline constexpr HashKeys kHashKeys = [] {
  HashKeys keys{};
  for (size_t i = 0; i < keys.low.size(); ++i) {
    const uint64_t key = hash_key_of_place(static_cast<int64_t>(i));
    keys.low[i] = static_cast<uint32_t>(key);
    keys.high[i] = static_cast<uint32_t>(key >> 32);
  }
  return keys;
}();

}  // namespace weft::kernels
