#include "weft/kernels/element_hash.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/kernels/element_hash_keys.h"
#include "weft/kernels/element_hash_simd.h"

namespace weft::kernels {

uint64_t hash_elements(std::span<const std::byte> bytes, int64_t item, int64_t first) {
  WEFT_CHECK(item == 1 || item == 2 || item == 4 || item == 8, "elements of {} bytes", item);
  const ElementHashTable& table = element_hash_table();
  const auto run = item == 1 ? table.u8 : item == 2 ? table.u16 : item == 4 ? table.u32 : table.u64;
  const int64_t count = std::ssize(bytes) / item;
  uint64_t sum = 0;
  for (int64_t done = 0; done < count;) {
    const int64_t place = (first + done) % kHashBlock, n = std::min(count - done, kHashBlock - place);
    sum += run(bytes.data() + done * item, n, place, hash_key_of_block((first + done) / kHashBlock));
    done += n;
  }
  return sum;
}

}  // namespace weft::kernels
