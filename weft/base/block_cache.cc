#include "weft/base/block_cache.h"

#include <sys/mman.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace weft {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Whole huge pages from 2 MiB on, so that blocks of nearly one size serve each other.
size_t rounded(size_t bytes) {
  const size_t step = bytes >= kHugePage ? kHugePage : 64;
  return (bytes + step - 1) / step * step;
}

struct Cache {
  std::mutex mutex;
  std::map<size_t, std::vector<void*>> blocks;  // by rounded size
  BlockCacheBytes bytes;
};

// Never destroyed: tensors of static lifetime come back after main.
Cache& cache() {
  static Cache* const c = new Cache;
  return *c;
}

}  // namespace

void* take_block(size_t bytes) {
  const size_t size = rounded(bytes);
  if (bytes >= kCachedBlockBytes) {
    Cache& c = cache();
    const std::lock_guard lock(c.mutex);
    c.bytes.live += static_cast<int64_t>(size);
    const auto it = c.blocks.find(size);
    if (it != c.blocks.end() && !it->second.empty()) {
      void* block = it->second.back();
      it->second.pop_back();
      c.bytes.kept -= static_cast<int64_t>(size);
      return block;
    }
  }
  void* block = std::aligned_alloc(size >= kHugePage ? kHugePage : 64, size);
  if (!block && bytes >= kCachedBlockBytes) {
    trim_block_cache();
    block = std::aligned_alloc(size >= kHugePage ? kHugePage : 64, size);
    if (!block) {
      Cache& c = cache();
      const std::lock_guard lock(c.mutex);
      c.bytes.live -= static_cast<int64_t>(size);
    }
  }
  if (!block) throw std::bad_alloc();
  if (size >= kHugePage) madvise(block, size, MADV_HUGEPAGE);
  return block;
}

void give_block(void* block, size_t bytes) noexcept {
  if (!block) return;
  if (bytes >= kCachedBlockBytes) {
    const size_t size = rounded(bytes);
    Cache& c = cache();
    const std::lock_guard lock(c.mutex);
    c.bytes.live -= static_cast<int64_t>(size);
    if (c.bytes.kept + static_cast<int64_t>(size) <= c.bytes.live / 4) {
      c.blocks[size].push_back(block);
      c.bytes.kept += static_cast<int64_t>(size);
      return;
    }
  }
  std::free(block);
}

BlockCacheBytes block_cache_bytes() {
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  return c.bytes;
}

void trim_block_cache() {
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  for (auto& [size, blocks] : c.blocks)
    for (void* block : blocks) std::free(block);
  c.blocks.clear();
  c.bytes.kept = 0;
}

}  // namespace weft
