#include "weft/refit/tensor_part.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/threads.h"
#include "weft/kernels/element_hash.h"
#include "weft/kernels/elementwise.h"
#include "weft/kernels/quantize.h"

namespace weft {
namespace {

// Where a box lies in a tensor of `shape`.
struct Place {
  const std::vector<int64_t>& shape;
  const std::vector<int64_t>& offset;
};

// Calls fn(indices of the first element in each tensor, count) for runs of elements that are consecutive in all of them.
template <size_t kPlaces, typename Fn>
void for_each_row(const std::vector<int64_t>& size, const std::array<Place, kPlaces>& places, const Fn& fn) {
  if (std::find(size.begin(), size.end(), 0) != size.end()) return;
  size_t outer = size.size();  // dims above the run's
  int64_t run = 1;
  bool whole = true;  // all dims below are whole in all
  while (outer > 0 && whole) {
    run *= size[--outer];
    whole = std::all_of(places.begin(), places.end(), [&](const Place& p) { return p.shape[outer] == size[outer]; });
  }
  std::vector<int64_t> index(outer, 0);
  for (;;) {
    std::array<int64_t, kPlaces> at{};
    for (size_t p = 0; p < kPlaces; ++p)
      for (size_t d = 0; d < size.size(); ++d)
        at[p] = at[p] * places[p].shape[d] + places[p].offset[d] + (d < outer ? index[d] : 0);
    fn(at, run);
    size_t d = outer;
    while (d > 0 && ++index[d - 1] == size[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace

MemoryBox memory_box(const TensorPart& part, const std::vector<int64_t>& offset, const std::vector<int64_t>& size) {
  return memory_box(part.data, part.shape, offset, size, dtype_bytes(part.dtype));
}

int64_t num_rows(const std::vector<int64_t>& shape) {
  return shape.empty() ? 1 : std::accumulate(shape.begin(), shape.end() - 1, int64_t{1}, std::multiplies<>());
}

int64_t row_number(const std::vector<int64_t>& size, int64_t r, const std::vector<int64_t>& offset,
                   const std::vector<int64_t>& shape) {
  int64_t number = 0, stride = 1;
  for (size_t d = size.empty() ? 0 : size.size() - 1; d-- > 0; r /= size[d], stride *= shape[d])
    number += (offset[d] + r % size[d]) * stride;
  return number;
}

bool converts(DType from, DType to) {
  if (to == DType::kI8) return from == DType::kF32;  // int8 without its scales says nothing
  return from == to || (from == DType::kF32 && to == DType::kBF16);
}

namespace {

void quantize_box(const TensorPart& part, const std::vector<int64_t>& offset, const Box& box, const WireType& to, int8_t* out) {
  constexpr int64_t kLeast = 1 << 14;  // elements a thread takes at least
  const std::vector<int64_t>& size = box.size;
  const int64_t width = size.empty() ? 1 : size.back(), first = size.empty() ? 0 : offset.back();
  const int64_t stride = size.empty() ? 1 : part.shape.back();
  if (width == 0) return;
  parallel_for(num_rows(size), std::max<int64_t>(1, kLeast / width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = reinterpret_cast<const float*>(part.data) + row_number(size, r, offset, part.shape) * stride + first;
      kernels::quantize(row, to.scales[row_number(size, r, box.offset, to.shape)], out + r * width, width);
    }
  });
}

}  // namespace

void convert_box(const TensorPart& part, const std::vector<int64_t>& offset, const Box& box, const WireType& to, std::byte* out) {
  if (part.dtype == to.dtype) {
    const MemoryBox from = memory_box(part, offset, box.size);
    return copy_box(contiguous_box(out, from.bytes()), from);
  }
  WEFT_CHECK(converts(part.dtype, to.dtype), "{} as {}", dtype_name(part.dtype), dtype_name(to.dtype));
  if (to.dtype == DType::kI8) return quantize_box(part, offset, box, to, reinterpret_cast<int8_t*>(out));
  const std::vector<int64_t> start(box.size.size(), 0);  // the box is a tensor of its own
  for_each_row<2>(box.size, {{{part.shape, offset}, {box.size, start}}}, [&](const std::array<int64_t, 2>& at, int64_t count) {
    kernels::convert(reinterpret_cast<const float*>(part.data) + at[0], reinterpret_cast<bf16*>(out) + at[1], count);
  });
}

uint64_t hash_box(const TensorPart& part, const std::vector<int64_t>& offset, const Box& box, const WireType& as) {
  constexpr int64_t kGrain = 1 << 16;  // elements: what is converted for it stays in a core's cache
  std::vector<Box> pieces;
  for_each_part(box, kGrain, [&](const Box& p) { pieces.push_back(p); });
  std::vector<uint64_t> sums(pieces.size());
  const int64_t item = dtype_bytes(as.dtype);
  parallel_for(std::ssize(pieces), 1, [&](int64_t begin, int64_t end) {
    std::vector<std::byte> converted;
    for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const Box& piece = pieces[i];
      TensorPart from = part;
      std::vector<int64_t> at = offset;
      for (size_t d = 0; d < at.size(); ++d) at[d] += piece.offset[d] - box.offset[d];
      if (part.dtype != as.dtype) {
        converted.resize(static_cast<size_t>(piece.numel() * item));
        convert_box(part, at, piece, as, converted.data());
        from = {converted.data(), as.dtype, piece.size};
        std::fill(at.begin(), at.end(), 0);
      }
      const auto add = [&](const std::array<int64_t, 2>& start, int64_t count) {
        sums[i] += kernels::hash_elements({from.data + start[0] * item, static_cast<size_t>(count * item)}, item, start[1]);
      };
      for_each_row<2>(piece.size, {{{from.shape, at}, {as.shape, piece.offset}}}, add);
    }
  });
  return std::accumulate(sums.begin(), sums.end(), uint64_t{0});
}

CopyHashes copy_and_hash_box(const TensorPart& to, const std::vector<int64_t>& to_offset, const TensorPart& from,
                             const std::vector<int64_t>& from_offset, const Box& box, const std::vector<int64_t>& shape) {
  WEFT_CHECK(to.dtype == from.dtype, "{} as {}", dtype_name(from.dtype), dtype_name(to.dtype));
  constexpr int64_t kBytes = 16 << 10;  // written and read again: half of a core's first cache
  const int64_t item = dtype_bytes(to.dtype);
  CopyHashes out;
  const auto copy_run = [&](const std::array<int64_t, 3>& at, int64_t count) {
    for (int64_t done = 0; done < count; done += kBytes / item) {
      const size_t bytes = static_cast<size_t>(std::min(count - done, kBytes / item) * item);
      const std::byte* here = from.data + (at[0] + done) * item;
      std::byte* there = to.data + (at[1] + done) * item;
      const int64_t first = at[2] + done;
      out.read += here == there ? kernels::hash_elements({here, bytes}, item, first)
                                : kernels::copy_and_hash_elements(there, {here, bytes}, item, first);
      out.written += kernels::hash_elements({there, bytes}, item, first);
    }
  };
  for_each_row<3>(box.size, {{{from.shape, from_offset}, {to.shape, to_offset}, {shape, box.offset}}}, copy_run);
  return out;
}

}  // namespace weft
