#pragma once
// This rank's part of a tensor, and what a refit does to boxes of it.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/comm/memory_box.h"
#include "weft/mesh/plan.h"

namespace weft {

// Contiguous host memory that somebody else owns; `data` is null where the rank holds nothing.
struct TensorPart {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // local
  bool operator==(const TensorPart&) const = default;
};

// The box at `offset` of the part.
MemoryBox memory_box(const TensorPart& part, const std::vector<int64_t>& offset, const std::vector<int64_t>& size);

// Whether values of one dtype can be sent as another: the same, or fp32 rounded to bf16.
bool converts(DType from, DType to);
// The box of `part` as `to`, row-major, rounded once (to nearest, ties to even).
void convert_box(const TensorPart& part, const std::vector<int64_t>& offset, const std::vector<int64_t>& size, DType to,
                 std::byte* out);

// The share of `box` in the hash (kernels/element_hash.h) of its tensor of `shape`, in dtype `as`; its elements lie at `offset`
// of the part. On all threads.
uint64_t hash_box(const TensorPart& part, const std::vector<int64_t>& offset, const Box& box, const std::vector<int64_t>& shape,
                  DType as);

// Copies the box at `from_offset` of one part to `to_offset` of another of the same dtype and hashes it, as hash_box does: what
// was read, and what then lies at its place, before that leaves the cache. Where both are the same memory it is hashed.
struct CopyHashes {
  uint64_t read = 0, written = 0;
};
CopyHashes copy_and_hash_box(const TensorPart& to, const std::vector<int64_t>& to_offset, const TensorPart& from,
                             const std::vector<int64_t>& from_offset, const Box& box, const std::vector<int64_t>& shape);

}  // namespace weft
