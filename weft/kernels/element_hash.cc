#include "weft/kernels/element_hash.h"

#include <algorithm>
#include <bit>

#include "weft/base/error.h"
#include "weft/kernels/element_hash_keys.h"
#include "weft/kernels/element_hash_simd.h"

namespace weft::kernels {

namespace {

// The sum of fn(elements before, elements, place of the first, key) over blocks.
template <typename Fn>
uint64_t sum_of_blocks(int64_t count, int64_t first, const Fn& fn) {
  uint64_t sum = 0;
  for (int64_t done = 0; done < count;) {
    const int64_t place = (first + done) % kHashBlock, n = std::min(count - done, kHashBlock - place);
    sum += fn(done, n, place, hash_key_of_block((first + done) / kHashBlock));
    done += n;
  }
  return sum;
}

size_t entry_of(int64_t item) {
  WEFT_CHECK(item == 1 || item == 2 || item == 4 || item == 8, "elements of {} bytes", item);
  return static_cast<size_t>(std::countr_zero(static_cast<uint64_t>(item)));
}

}  // namespace

uint64_t hash_elements(std::span<const std::byte> bytes, int64_t item, int64_t first) {
  const auto run = element_hash_table().hash[entry_of(item)];
  return sum_of_blocks(std::ssize(bytes) / item, first, [&](int64_t done, int64_t n, int64_t place, uint64_t block) {
    return run(bytes.data() + done * item, n, place, block);
  });
}

uint64_t copy_and_hash_elements(std::byte* to, std::span<const std::byte> bytes, int64_t item, int64_t first) {
  const auto run = element_hash_table().copy_and_hash[entry_of(item)];
  return sum_of_blocks(std::ssize(bytes) / item, first, [&](int64_t done, int64_t n, int64_t place, uint64_t block) {
    return run(to + done * item, bytes.data() + done * item, n, place, block);
  });
}

}  // namespace weft::kernels
