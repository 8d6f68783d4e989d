#include "weft/base/element_hash.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "weft/base/random.h"

namespace weft {
namespace {

// Elements are multiplied by keys and summed: one multiplication each, as every byte that is saved passes here. Keys are odd, so
// that no change of one element is lost, and random: a table for the place in a block, and a word of the block.
constexpr int64_t kBlock = 1024;
constexpr std::array<uint64_t, kBlock> kKeys = [] {
  std::array<uint64_t, kBlock> keys{};
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = mix64((i + 1) * kGoldenGamma) | 1;
  return keys;
}();
constexpr uint64_t key_of_block(int64_t block) { return hash_combine(1, static_cast<uint64_t>(block)) & ~uint64_t{1}; }

template <typename Bits>
uint64_t sum_of_hashes(const std::byte* at, int64_t count, int64_t first) {
  uint64_t sum = 0;
  for (int64_t done = 0; done < count;) {
    const int64_t place = (first + done) % kBlock, n = std::min(count - done, kBlock - place);
    const uint64_t block = key_of_block((first + done) / kBlock);
    const uint64_t* keys = kKeys.data() + place;
    for (int64_t i = 0; i < n; ++i, at += sizeof(Bits)) {
      Bits bits;
      std::memcpy(&bits, at, sizeof(Bits));
      sum += (keys[i] ^ block) * bits;
    }
    done += n;
  }
  return sum;
}

}  // namespace

uint64_t hash_elements(std::span<const std::byte> bytes, int64_t item, int64_t first) {
  const int64_t count = static_cast<int64_t>(bytes.size()) / item;
  switch (item) {
    case 1: return sum_of_hashes<uint8_t>(bytes.data(), count, first);
    case 2: return sum_of_hashes<uint16_t>(bytes.data(), count, first);
    case 4: return sum_of_hashes<uint32_t>(bytes.data(), count, first);
    default: return sum_of_hashes<uint64_t>(bytes.data(), count, first);
  }
}

}  // namespace weft
