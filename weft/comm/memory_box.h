#pragma once
// A box of a tensor in memory: what an exchange of boxes reads and writes in place.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weft {

// `data`: of the first element. Sizes and strides are in bytes in the last dim, whose stride is 1, and in rows of it above:
// element (i, j, byte k) lies at data + i * strides[0] + j * strides[1] + k.
struct MemoryBox {
  std::byte* data = nullptr;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t bytes() const {
    int64_t n = 1;
    for (int64_t s : sizes) n *= s;
    return n;
  }
};

// The box `size` at `offset` of a contiguous tensor of `shape`; a tensor without dims is one element.
MemoryBox memory_box(std::byte* tensor, std::span<const int64_t> shape, std::span<const int64_t> offset,
                     std::span<const int64_t> size, int64_t element_bytes);
// One contiguous piece of memory.
inline MemoryBox contiguous_box(std::byte* data, int64_t bytes) { return {data, {bytes}, {1}}; }

// Whether the bytes of the box lie in one run.
bool contiguous(const MemoryBox& box);

// What a copy does to the caches: kStreamed for more bytes than they hold that nobody reads soon (kernels/stream_copy.h).
enum class Stores { kCached, kStreamed };
// For a copy of so many bytes in all to the place where they are to stay.
Stores stores_for(int64_t bytes);

// `to` and `from` have as many bytes and the same sizes, or one of them is contiguous. Nothing where they are the same memory;
// else they do not overlap.
void copy_box(const MemoryBox& to, const MemoryBox& from, Stores stores = Stores::kCached);
// As many boxes, one by one.
void copy_boxes(const std::vector<MemoryBox>& to, const std::vector<MemoryBox>& from, Stores stores = Stores::kCached);

}  // namespace weft
