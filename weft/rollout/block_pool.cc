#include "weft/rollout/block_pool.h"

#include "weft/base/error.h"

namespace weft {

BlockPool::BlockPool(int64_t num_blocks) {
  WEFT_CHECK(num_blocks >= 0 && num_blocks <= INT32_MAX, "{} blocks", num_blocks);
  references_.assign(static_cast<size_t>(num_blocks), 0);
  for (int64_t i = num_blocks - 1; i >= 0; --i) free_.push_back(static_cast<BlockId>(i));
}

std::vector<BlockId> BlockPool::allocate(int64_t n) {
  WEFT_CHECK(n >= 0 && n <= num_free(), "{} blocks asked, {} free", n, num_free());
  std::vector<BlockId> out;
  out.reserve(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    out.push_back(free_.back());
    free_.pop_back();
    references_[static_cast<size_t>(out.back())] = 1;
  }
  return out;
}

void BlockPool::add_reference(BlockId block) {
  WEFT_CHECK(references(block) > 0, "block {} is free", block);
  ++references_[static_cast<size_t>(block)];
}

void BlockPool::release(BlockId block) {
  WEFT_CHECK(references(block) > 0, "block {} released twice", block);
  if (--references_[static_cast<size_t>(block)] == 0) free_.push_back(block);
}

void BlockPool::release(const std::vector<BlockId>& blocks) {
  for (BlockId b : blocks) release(b);
}

void BlockPool::check_integrity() const {
  std::vector<bool> listed(references_.size(), false);
  for (BlockId b : free_) {
    WEFT_CHECK(!listed[static_cast<size_t>(b)], "block {} is listed free twice", b);
    WEFT_CHECK(references(b) == 0, "block {} is listed free with {} references", b, references(b));
    listed[static_cast<size_t>(b)] = true;
  }
  for (size_t b = 0; b < references_.size(); ++b)
    WEFT_CHECK(listed[b] || references_[b] > 0, "block {} is neither free nor used", b);
}

}  // namespace weft
