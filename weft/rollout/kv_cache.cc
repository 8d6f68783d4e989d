#include "weft/rollout/kv_cache.h"

#include <cstring>

#include "weft/base/error.h"

namespace weft {

KvCache::KvCache(kernels::KvShape shape, int64_t num_layers, int64_t num_blocks)
    : shape_(shape),
      num_layers_(num_layers),
      num_blocks_(num_blocks),
      arena_(std::make_shared<Arena>("rollout.kv_cache", /*huge_pages=*/false)) {
  try {
    for (int64_t i = 0; i < num_layers; ++i) layers_.push_back(arena_->allocate(shape.block_bytes() * num_blocks));
  } catch (const SystemError& e) {
    throw SystemError(fmt::format("{}. Lower rollout.kv_cache_tokens", e.what()));
  }
}

void KvCache::copy_block(int32_t from, int32_t to) {
  const int64_t n = shape_.block_bytes();
  for (void* p : layers_)
    std::memcpy(static_cast<char*>(p) + to * n, static_cast<const char*>(p) + from * n, static_cast<size_t>(n));
}

}  // namespace weft
