#include "weft/checkpoint/parameter_part.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstring>

#include "weft/base/error.h"
#include "weft/kernels/element_hash.h"

namespace weft {
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 20;

// The box of the tensor on disk that a box of the parameter is.
Box on_disk(const WeightEntry& e, const Box& shared) {
  Box out = shared;
  for (size_t d = 0; d < out.offset.size(); ++d) out.offset[d] -= e.box.offset[d];
  return out;
}

}  // namespace

ParameterPart whole_parameter(const at::Tensor& master) {
  const std::vector<int64_t> shape = master.sizes().vec(), zero(shape.size(), 0);
  return {master, {{{zero, shape}, zero}}};
}

ParameterPart whole_tensor(const WeightEntry& e, const at::Tensor& full) {
  return {full.view(e.box.size), {{e.box, std::vector<int64_t>(e.box.size.size(), 0)}}};
}

at::Tensor narrow_to(const at::Tensor& t, const Box& box) {
  at::Tensor out = t;
  for (size_t d = 0; d < box.size.size(); ++d) out = out.narrow(static_cast<int64_t>(d), box.offset[d], box.size[d]);
  return out;
}

at::ScalarType floating_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return at::kFloat;
    case DType::kBF16: return at::kBFloat16;
    case DType::kF16: return at::kHalf;
    default: break;
  }
  WEFT_CHECK(false, "{} is no dtype of weights", dtype_name(dtype));
  return at::kFloat;
}

void for_each_piece(const ParameterPart& part, const WeightEntry& e,
                    const std::function<void(const at::Tensor&, const Box&)>& fn) {
  for (const LocalBox& mine : part.boxes)
    for_each_part(intersect(e.box, mine.box), kPieceElements, [&](const Box& piece) {
      Box here{mine.local_offset, piece.size};
      for (size_t d = 0; d < piece.size.size(); ++d) here.offset[d] += piece.offset[d] - mine.box.offset[d];
      fn(narrow_to(part.local, here), on_disk(e, piece));
    });
}

at::Tensor read_box(std::span<const std::byte> bytes, DType dtype, const std::vector<int64_t>& shape, const Box& box) {
  at::Tensor raw = at::empty(box.size, floating_type(dtype));  // foreign files need not align their tensors
  const int64_t item = dtype_bytes(dtype);
  auto* to = static_cast<std::byte*>(raw.data_ptr());
  for_each_run(shape, box, [&](int64_t first, int64_t count) {
    std::memcpy(to, bytes.data() + first * item, static_cast<size_t>(count * item));
    to += count * item;
  });
  return raw.to(at::kFloat);
}

int64_t read_part(std::span<const std::byte> bytes, DType dtype, const WeightEntry& e, const ParameterPart& part) {
  at::NoGradGuard guard;
  int64_t read = 0;
  for_each_piece(part, e, [&](const at::Tensor& there, const Box& box) {
    there.copy_(read_box(bytes, dtype, e.box.size, box));
    read += box.numel() * dtype_bytes(dtype);
  });
  return read;
}

uint64_t hash_part(std::span<const std::byte> bytes, DType dtype, const WeightEntry& e, const std::vector<LocalBox>& boxes) {
  const int64_t item = dtype_bytes(dtype);
  uint64_t sum = 0;
  for (const LocalBox& mine : boxes)
    for_each_run(e.box.size, on_disk(e, intersect(e.box, mine.box)), [&](int64_t first, int64_t count) {
      sum += kernels::hash_elements(bytes.subspan(static_cast<size_t>(first * item), static_cast<size_t>(count * item)), item, first);
    });
  return sum;
}

}  // namespace weft
