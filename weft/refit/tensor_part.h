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
  float* scales = nullptr;     // of an int8 destination: one for each of its rows, [shape without the last dim]
  bool operator==(const TensorPart&) const = default;
};

// The box at `offset` of the part.
MemoryBox memory_box(const TensorPart& part, const std::vector<int64_t>& offset, const std::vector<int64_t>& size);

// Rows lie along the last dim.
int64_t num_rows(const std::vector<int64_t>& shape);
// The number, among the rows of a tensor of `shape`, of row r of a box of `size` that lies at `offset` of it.
int64_t row_number(const std::vector<int64_t>& size, int64_t r, const std::vector<int64_t>& offset,
                   const std::vector<int64_t>& shape);

// What travels of a tensor.
struct WireType {
  DType dtype = DType::kF32;
  const std::vector<int64_t>& shape;  // of the whole
  const float* scales = nullptr;      // of int8: of all its rows (kernels/quantize.h)
};

// Whether values of one dtype can be sent as another: the same, or fp32 rounded to bf16 or quantised to int8.
bool converts(DType from, DType to);
// `box`, whose elements lie at `offset` of the part, as it travels: row-major, rounded once (to nearest, ties to even).
void convert_box(const TensorPart& part, const std::vector<int64_t>& offset, const Box& box, const WireType& to, std::byte* out);

// The share of `box` in the hash (kernels/element_hash.h) of its tensor, as it travels; its elements lie at `offset` of the part.
// On all threads.
uint64_t hash_box(const TensorPart& part, const std::vector<int64_t>& offset, const Box& box, const WireType& as);

// Copies the box at `from_offset` of one part to `to_offset` of another of the same dtype and hashes it, as hash_box does: what
// was read, and what then lies at its place, before that leaves the cache. Where both are the same memory it is hashed.
struct CopyHashes {
  uint64_t read = 0, written = 0;
};
CopyHashes copy_and_hash_box(const TensorPart& to, const std::vector<int64_t>& to_offset, const TensorPart& from,
                             const std::vector<int64_t>& from_offset, const Box& box, const std::vector<int64_t>& shape);

}  // namespace weft
