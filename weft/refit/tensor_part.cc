#include "weft/refit/tensor_part.h"

#include <algorithm>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/threads.h"
#include "weft/kernels/element_hash.h"
#include "weft/kernels/elementwise.h"

namespace weft {
namespace {

// Calls fn(index in the part, index in the whole tensor, count) for runs of elements that are consecutive in both.
template <typename Fn>
void for_each_row(const std::vector<int64_t>& local, const std::vector<int64_t>& offset, const Box& box,
                  const std::vector<int64_t>& shape, const Fn& fn) {
  if (box.numel() == 0) return;
  size_t outer = local.size();  // dims above the run's
  int64_t run = 1;
  bool whole = true;  // all dims below are whole in both
  while (outer > 0 && whole) {
    run *= box.size[--outer];
    whole = box.size[outer] == local[outer] && box.size[outer] == shape[outer];
  }
  std::vector<int64_t> index(outer, 0);
  for (;;) {
    int64_t here = 0, there = 0;
    for (size_t d = 0; d < local.size(); ++d) {
      const int64_t i = d < outer ? index[d] : 0;
      here = here * local[d] + offset[d] + i;
      there = there * shape[d] + box.offset[d] + i;
    }
    fn(here, there, run);
    size_t d = outer;
    while (d > 0 && ++index[d - 1] == box.size[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace

MemoryBox memory_box(const TensorPart& part, const std::vector<int64_t>& offset, const std::vector<int64_t>& size) {
  return memory_box(part.data, part.shape, offset, size, dtype_bytes(part.dtype));
}

bool converts(DType from, DType to) { return from == to || (from == DType::kF32 && to == DType::kBF16); }

void convert_box(const TensorPart& part, const std::vector<int64_t>& offset, const std::vector<int64_t>& size, DType to,
                 std::byte* out) {
  const Box box{std::vector<int64_t>(size.size(), 0), size};
  const int64_t item = dtype_bytes(part.dtype);
  if (part.dtype == to) return copy_box(contiguous_box(out, box.numel() * item), memory_box(part, offset, size));
  WEFT_CHECK(converts(part.dtype, to), "{} as {}", dtype_name(part.dtype), dtype_name(to));
  // The box as a tensor of its own: `there` counts its elements.
  for_each_row(part.shape, offset, box, size, [&](int64_t here, int64_t there, int64_t count) {
    kernels::convert(reinterpret_cast<const float*>(part.data) + here, reinterpret_cast<bf16*>(out) + there, count);
  });
}

uint64_t hash_box(const TensorPart& part, const std::vector<int64_t>& offset, const Box& box, const std::vector<int64_t>& shape,
                  DType as) {
  constexpr int64_t kGrain = 1 << 16;  // elements: what is converted for it stays in a core's cache
  std::vector<Box> pieces;
  for_each_part(box, kGrain, [&](const Box& p) { pieces.push_back(p); });
  std::vector<uint64_t> sums(pieces.size());
  const int64_t item = dtype_bytes(as);
  parallel_for(std::ssize(pieces), 1, [&](int64_t begin, int64_t end) {
    std::vector<std::byte> converted;
    for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const Box& piece = pieces[i];
      TensorPart from = part;
      std::vector<int64_t> at = offset;
      for (size_t d = 0; d < at.size(); ++d) at[d] += piece.offset[d] - box.offset[d];
      if (part.dtype != as) {
        converted.resize(static_cast<size_t>(piece.numel() * item));
        convert_box(part, at, piece.size, as, converted.data());
        from = {converted.data(), as, piece.size};
        std::fill(at.begin(), at.end(), 0);
      }
      for_each_row(from.shape, at, piece, shape, [&](int64_t here, int64_t there, int64_t count) {
        sums[i] += kernels::hash_elements({from.data + here * item, static_cast<size_t>(count * item)}, item, there);
      });
    }
  });
  return std::accumulate(sums.begin(), sums.end(), uint64_t{0});
}

}  // namespace weft
