#include "weft/rollout/kv_cache.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "weft/base/error.h"

namespace weft {

KvCache::KvCache(kernels::KvShape shape, int64_t num_layers, int64_t num_blocks)
    : shape_(shape), num_layers_(num_layers), num_blocks_(num_blocks), arena_bytes_(shape.block_bytes() * num_blocks) {
  for (int64_t i = 0; i < num_layers; ++i) {
    void* p = mmap(nullptr, static_cast<size_t>(arena_bytes_), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
      const int error = errno;
      for (void* q : layers_) munmap(q, static_cast<size_t>(arena_bytes_));
      throw SystemError(fmt::format("key/value cache: cannot map {} bytes for layer {}: {}. Lower rollout.kv_cache_tokens",
                                    arena_bytes_, i, std::strerror(error)));
    }
    layers_.push_back(p);
  }
}

KvCache::~KvCache() {
  for (void* p : layers_) munmap(p, static_cast<size_t>(arena_bytes_));
}

void KvCache::copy_block(int32_t from, int32_t to) {
  const int64_t n = shape_.block_bytes();
  for (void* p : layers_)
    std::memcpy(static_cast<char*>(p) + to * n, static_cast<const char*>(p) + from * n, static_cast<size_t>(n));
}

}  // namespace weft
