#pragma once
// Blocks of the key/value cache: integers and reference counts, no memory. Decision code: checked by check_integrity().

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft {

using BlockId = int32_t;

class BlockPool {
 public:
  explicit BlockPool(int64_t num_blocks);

  int64_t num_blocks() const { return static_cast<int64_t>(references_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  // Takes n blocks with one reference each; the caller has checked num_free().
  std::vector<BlockId> allocate(int64_t n);
  void add_reference(BlockId block);
  void release(BlockId block);
  void release(const std::vector<BlockId>& blocks);
  int32_t references(BlockId block) const { return references_[static_cast<size_t>(block)]; }

  // Free blocks have no reference and are listed once, others have one or more.
  void check_integrity() const;

 private:
  std::vector<int32_t> references_;
  std::vector<BlockId> free_;  // last in, first out: recently used blocks are warm
};

}  // namespace weft
