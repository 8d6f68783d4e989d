#pragma once
// Memory of the paged key/value cache: [num_blocks] blocks of kernels::KvShape a layer, in the arena rollout.kv_cache. Pages are
// taken when first written.

#include <cstdint>
#include <memory>
#include <vector>

#include "weft/base/arena.h"
#include "weft/kernels/attention.h"

namespace weft {

class KvCache {
 public:
  // SystemError with the size asked when the machine refuses.
  KvCache(kernels::KvShape shape, int64_t num_layers, int64_t num_blocks);
  const kernels::KvShape& shape() const { return shape_; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t bytes() const { return shape_.block_bytes() * num_blocks_ * num_layers_; }
  const std::vector<void*>& layers() const { return layers_; }
  Arena& arena() { return *arena_; }
  const Arena& arena() const { return *arena_; }
  // In every layer.
  void copy_block(int32_t from, int32_t to);

 private:
  kernels::KvShape shape_;
  int64_t num_layers_, num_blocks_;
  std::shared_ptr<Arena> arena_;
  std::vector<void*> layers_;
};

}  // namespace weft
