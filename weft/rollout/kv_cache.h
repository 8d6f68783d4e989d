#pragma once
// Memory of the paged key/value cache: one mapped arena a layer, [num_blocks] blocks of kernels::KvShape. Given back to the
// system as a whole, which malloc would not do.

#include <cstdint>
#include <vector>

#include "weft/kernels/attention.h"

namespace weft {

class KvCache {
 public:
  // SystemError with the size asked when the machine refuses.
  KvCache(kernels::KvShape shape, int64_t num_layers, int64_t num_blocks);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const kernels::KvShape& shape() const { return shape_; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t bytes() const { return shape_.block_bytes() * num_blocks_ * num_layers_; }
  const std::vector<void*>& layers() const { return layers_; }
  // In every layer.
  void copy_block(int32_t from, int32_t to);

 private:
  kernels::KvShape shape_;
  int64_t num_layers_, num_blocks_, arena_bytes_;
  std::vector<void*> layers_;
};

}  // namespace weft
