#include "weft/base/block_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
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
  std::map<size_t, std::vector<void*>> blocks;  // by rounded size, none empty
  BlockCacheBytes bytes;

  void* pop(std::map<size_t, std::vector<void*>>::iterator it) {
    void* block = it->second.back();
    it->second.pop_back();
    bytes.kept -= static_cast<int64_t>(it->first);
    if (it->second.empty()) blocks.erase(it);
    return block;
  }
  // Largest first.
  void shrink_to(int64_t kept) {
    while (bytes.kept > kept) std::free(pop(std::prev(blocks.end())));
  }
};

// Never destroyed: tensors of static lifetime come back after main.
Cache& cache() {
  static Cache* const c = new Cache;
  return *c;
}

void* allocate(size_t size) { return std::aligned_alloc(size >= kHugePage ? kHugePage : 64, size); }

}  // namespace

void* take_block(size_t bytes) {
  const size_t size = rounded(bytes);
  void* block = nullptr;
  if (bytes < kCachedBlockBytes) {
    block = allocate(size);
  } else {
    Cache& c = cache();
    const std::lock_guard lock(c.mutex);
    if (const auto it = c.blocks.find(size); it != c.blocks.end()) {
      block = c.pop(it);
    } else {
      c.shrink_to(std::max<int64_t>(0, c.bytes.most - c.bytes.live - static_cast<int64_t>(size)));
      block = allocate(size);
      if (!block) {
        c.shrink_to(0);
        block = allocate(size);
      }
      if (block && size >= kHugePage) madvise(block, size, MADV_HUGEPAGE);
    }
    if (block) c.bytes.live += static_cast<int64_t>(size), c.bytes.most = std::max(c.bytes.most, c.bytes.live);
  }
  if (!block) throw std::bad_alloc();
  return block;
}

void give_block(void* block, size_t bytes) noexcept {
  if (!block) return;
  if (bytes < kCachedBlockBytes) return std::free(block);
  const size_t size = rounded(bytes);
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  c.bytes.live -= static_cast<int64_t>(size);
  try {
    c.blocks[size].push_back(block);
    c.bytes.kept += static_cast<int64_t>(size);
  } catch (const std::bad_alloc&) {  // of the list
    if (const auto it = c.blocks.find(size); it != c.blocks.end() && it->second.empty()) c.blocks.erase(it);
    std::free(block);
  }
}

BlockCacheBytes block_cache_bytes() {
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  return c.bytes;
}

void trim_block_cache() {
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  c.shrink_to(0);
}

}  // namespace weft
