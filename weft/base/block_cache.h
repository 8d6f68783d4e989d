#pragma once
// Large blocks of memory that come and go with every layer (gathered weights, gradients, packed panels, activations). Given back to the
// system, each block's pages would be faulted in and zeroed again by the next one: a tenth of the CPU time of a sharded training step.
// So blocks are kept for the next of the same size, as far as what is in use and what is kept do not pass the most that was ever in use:
// tensors take no more of the system by it than they once did. Any thread.

#include <cstddef>
#include <cstdint>

namespace weft {

// From here on a block comes from the cache; smaller ones are malloc's.
inline constexpr size_t kCachedBlockBytes = size_t{1} << 20;

// At least `bytes` (> 0), 64-byte aligned; contents undefined. std::bad_alloc. Large ones ask for huge pages.
void* take_block(size_t bytes);
// `bytes` as it was taken; null is fine.
void give_block(void* block, size_t bytes) noexcept;

struct BlockCacheBytes {
  int64_t live = 0, kept = 0, most = 0;  // most: of live, ever
};
BlockCacheBytes block_cache_bytes();
// Returns what is kept to the system.
void trim_block_cache();

}  // namespace weft
