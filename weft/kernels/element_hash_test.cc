#include "weft/kernels/element_hash.h"

#include <algorithm>
#include <set>
#include <vector>

#include "weft/base/random.h"
#include "weft/kernels/element_hash_reference.h"
#include "weft/kernels/test_support.h"

namespace weft::kernels {
namespace {

class ElementHash : public testing::Kernels {};

std::vector<std::byte> some_bytes(size_t n) {
  std::vector<std::byte> out(n);
  const CounterRng rng(9);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(rng.at(i));
  return out;
}

TEST_F(ElementHash, EveryTargetHasTheScalarBits) {
  const std::vector<std::byte> bytes = some_bytes(8 * 4100 + 3);
  everywhere([&] {
    for (const int64_t item : {1, 2, 4, 8})
      for (const size_t skipped : {0, 1, 3})  // elements anywhere in memory
        for (const int64_t count : {0, 1, 7, 8, 9, 15, 16, 17, 31, 100, 1023, 1024, 1025, 4099})
          for (const int64_t first : {int64_t{0}, int64_t{1}, int64_t{1009}, int64_t{1} << 33}) {
            const auto part = std::span(bytes).subspan(skipped, static_cast<size_t>(count * item));
            ASSERT_EQ(hash_elements(part, item, first), reference::hash_elements(part, item, first))
                << count << " of " << item << " bytes from " << first;
            std::vector<std::byte> copy(part.size() + 1, std::byte{0x5a}), expected(part.begin(), part.end());
            expected.push_back(std::byte{0x5a});
            ASSERT_EQ(copy_and_hash_elements(copy.data(), part, item, first), reference::hash_elements(part, item, first));
            ASSERT_EQ(copy, expected) << count << " of " << item << " bytes";
          }
  });
  const std::vector<std::byte> ones(4 * 4100, std::byte{0xff});  // the largest products
  everywhere([&] { EXPECT_EQ(hash_elements(ones, 4, 3), reference::hash_elements(ones, 4, 3)); });
}

TEST_F(ElementHash, AddsOverParts) {
  const std::vector<std::byte> bytes = some_bytes(8 * 3000);
  for (const int64_t item : {1, 2, 4, 8}) {
    const int64_t count = static_cast<int64_t>(bytes.size()) / item;
    const std::span<const std::byte> all(bytes);
    const uint64_t whole = hash_elements(all, item, 0);
    for (const int64_t at : {int64_t{0}, int64_t{1}, int64_t{1023}, int64_t{1024}, int64_t{2047}, count}) {
      const auto cut = static_cast<size_t>(at * item);
      EXPECT_EQ(hash_elements(all.first(cut), item, 0) + hash_elements(all.subspan(cut), item, at), whole) << item << " " << at;
    }
    EXPECT_NE(hash_elements(all, item, 1), whole) << "elements at other places";
  }
}

TEST_F(ElementHash, EveryFlippedBitAndEveryExchangeShows) {
  std::vector<std::byte> bytes = some_bytes(4 * 1500);
  const uint64_t whole = hash_elements(bytes, 4, 0);
  std::set<uint64_t> seen{whole};
  for (size_t bit = 0; bit < bytes.size() * 8; bit += 7) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_TRUE(seen.insert(hash_elements(bytes, 4, 0)).second) << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  for (size_t i = 0; i + 1 < 1500; i += 13) {
    std::swap_ranges(bytes.begin() + static_cast<long>(4 * i), bytes.begin() + static_cast<long>(4 * i + 4),
                     bytes.begin() + 4 * 1499);
    EXPECT_NE(hash_elements(bytes, 4, 0), whole) << i;
    std::swap_ranges(bytes.begin() + static_cast<long>(4 * i), bytes.begin() + static_cast<long>(4 * i + 4),
                     bytes.begin() + 4 * 1499);
  }
  EXPECT_EQ(hash_elements(bytes, 4, 0), whole);
}

TEST_F(ElementHash, AStatedValue) {  // manifests of older checkpoints hold such
  const std::vector<std::byte> bytes = some_bytes(4096);
  EXPECT_EQ(hash_elements(bytes, 4, 5), 0x75be8c5b369518c2);
}

}  // namespace
}  // namespace weft::kernels
