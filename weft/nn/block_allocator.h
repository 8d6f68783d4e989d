#pragma once
// Large CPU tensors on the block cache (base/block_cache.h).

namespace weft::nn {

// For all CPU tensors of the process that are allocated from now on. Once, before any rank starts; nothing depends on it but speed.
void use_block_cache_for_tensors();

}  // namespace weft::nn
