#pragma once
// The loops of element_hash_simd.cc, one table per SIMD target (internal).

#include <cstddef>
#include <cstdint>

#include "weft/kernels/target.h"

namespace weft::kernels {

// n elements at `place` of the block with this key; none is beyond its end.
using HashRun = uint64_t (*)(const std::byte* at, int64_t n, int64_t place, uint64_t block);
using CopyAndHashRun = uint64_t (*)(std::byte* to, const std::byte* at, int64_t n, int64_t place, uint64_t block);
struct ElementHashTable {
  HashRun hash[4];  // of elements of 1, 2, 4 and 8 bytes
  CopyAndHashRun copy_and_hash[4];
};
namespace portable {
extern const ElementHashTable kElementHash;
}
namespace avx2 {
extern const ElementHashTable kElementHash;
}
namespace avx512 {
extern const ElementHashTable kElementHash;
}

inline const ElementHashTable& element_hash_table() {
  return select(portable::kElementHash, avx2::kElementHash, avx512::kElementHash);
}

}  // namespace weft::kernels
