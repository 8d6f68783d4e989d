#include "weft/comm/memory_box.h"

#include "weft/base/error.h"
#include "weft/comm/copy_bytes.h"
#include "weft/kernels/stream_copy.h"

namespace weft {
namespace {

// A core's own caches have 1 to 2 MB; the last one is shared with the other ranks, which copy too.
constexpr int64_t kStreamedBytes = 1 << 20;
// Shorter runs have too many ends, which are stored in the ordinary way.
constexpr int64_t kStreamedRun = 512;

// Contiguous memory seen in the dims of another box.
MemoryBox as(const MemoryBox& flat, const MemoryBox& shape) {
  MemoryBox out{flat.data, shape.sizes, shape.sizes};
  int64_t run = 1;
  for (size_t d = out.sizes.size(); d-- > 0; run *= out.sizes[d]) out.strides[d] = run;
  return out;
}

}  // namespace

bool contiguous(const MemoryBox& box) {
  int64_t run = 1;
  for (size_t d = box.sizes.size(); d-- > 0; run *= box.sizes[d])
    if (box.sizes[d] != 1 && box.strides[d] != run) return false;
  return true;
}

MemoryBox memory_box(std::byte* tensor, std::span<const int64_t> shape, std::span<const int64_t> offset,
                     std::span<const int64_t> size, int64_t element_bytes) {
  if (shape.empty()) return contiguous_box(tensor, element_bytes);
  MemoryBox box{tensor, {size.begin(), size.end()}, std::vector<int64_t>(size.size())};
  int64_t stride = element_bytes;
  for (size_t d = shape.size(); d-- > 0; stride *= shape[d]) {
    box.strides[d] = stride;
    box.data += offset[d] * stride;
  }
  box.sizes.back() *= element_bytes;
  box.strides.back() = 1;
  return box;
}

Stores stores_for(int64_t bytes) { return bytes >= kStreamedBytes ? Stores::kStreamed : Stores::kCached; }

void copy_box(const MemoryBox& to, const MemoryBox& from, Stores stores) {
  WEFT_CHECK(to.bytes() == from.bytes(), "a box of {} bytes into one of {}", from.bytes(), to.bytes());
  if (to.bytes() == 0) return;
  if (to.sizes != from.sizes) {
    WEFT_CHECK(contiguous(to) || contiguous(from), "boxes of other sizes");
    return contiguous(from) ? copy_box(to, as(from, to), stores) : copy_box(as(to, from), from, stores);
  }
  // Dims from `outer` on are one run in both.
  size_t outer = to.sizes.size();
  int64_t run = 1;
  while (outer > 0 && (to.sizes[outer - 1] == 1 || (to.strides[outer - 1] == run && from.strides[outer - 1] == run)))
    run *= to.sizes[--outer];
  if (to.data == from.data && to.strides == from.strides) return;
  const bool streamed = stores == Stores::kStreamed && run >= kStreamedRun;
  std::vector<int64_t> index(outer, 0);
  int64_t there = 0, here = 0;
  for (;;) {
    if (streamed)
      kernels::stream_copy(to.data + there, from.data + here, run);
    else
      copy_bytes(to.data + there, from.data + here, run);
    size_t d = outer;
    while (d > 0) {
      there += to.strides[d - 1], here += from.strides[d - 1];
      if (++index[d - 1] < to.sizes[d - 1]) break;
      there -= to.strides[d - 1] * to.sizes[d - 1], here -= from.strides[d - 1] * to.sizes[d - 1];
      index[--d] = 0;
    }
    if (d == 0) break;
  }
  if (streamed) kernels::finish_streams();
}

void copy_boxes(const std::vector<MemoryBox>& to, const std::vector<MemoryBox>& from, Stores stores) {
  WEFT_CHECK(to.size() == from.size(), "{} boxes into {}", from.size(), to.size());
  for (size_t i = 0; i < to.size(); ++i) copy_box(to[i], from[i], stores);
}

}  // namespace weft
