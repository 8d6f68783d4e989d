#include "weft/kernels/element_hash_reference.h"

#include "weft/kernels/element_hash_keys.h"

namespace weft::kernels::reference {

uint64_t hash_elements(std::span<const std::byte> bytes, int64_t item, int64_t first) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes.size() / static_cast<size_t>(item); ++i) {
    uint64_t bits = 0;  // the first byte is the lowest
    for (size_t b = static_cast<size_t>(item); b-- > 0;)
      bits = bits << 8 | static_cast<uint64_t>(bytes[i * static_cast<size_t>(item) + b]);
    const int64_t index = first + static_cast<int64_t>(i);
    sum += bits * (hash_key_of_place(index % kHashBlock) ^ hash_key_of_block(index / kHashBlock));
  }
  return sum;
}

}  // namespace weft::kernels::reference
