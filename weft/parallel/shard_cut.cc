#include "weft/parallel/shard_cut.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr const char* kUnshard = "unshard";

}  // namespace

DType wire_dtype(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kDouble: return DType::kF64;
    case at::kFloat: return DType::kF32;
    case at::kHalf: return DType::kF16;
    case at::kBFloat16: return DType::kBF16;
    case at::kLong: return DType::kI64;
    case at::kInt: return DType::kI32;
    case at::kShort: return DType::kI16;
    case at::kChar: return DType::kI8;
    case at::kByte: return DType::kU8;
    case at::kBool: return DType::kBool;
    default: throw ValueError(fmt::format("tensors of {} do not travel between ranks", c10::toString(t.scalar_type())));
  }
}

ShardCut::ShardCut(std::vector<int64_t> tensor_shape, std::optional<int64_t> cut_dim, int64_t ranks)
    : shape(std::move(tensor_shape)), copies(!cut_dim), dim(cut_dim.value_or(0)), contiguous(copies) {
  if (copies) return;
  const int64_t length = shape.at(static_cast<size_t>(dim)), chunk = (length + ranks - 1) / ranks;
  int64_t others = 1;
  for (size_t d = 0; d < shape.size(); ++d) others *= static_cast<int64_t>(d) == dim ? 1 : shape[d];
  for (int64_t r = 0; r < ranks; ++r) {
    shapes.push_back(shape);
    int64_t& rows = shapes.back()[static_cast<size_t>(dim)];
    rows = std::min(length, (r + 1) * chunk) - std::min(length, r * chunk);
    counts.push_back(rows * others);
  }
  contiguous = ranks == 1 || std::all_of(shape.begin(), shape.begin() + dim, [](int64_t size) { return size == 1; });
}

at::Tensor ShardCut::part(const at::Tensor& full, int64_t rank) const {
  const size_t d = static_cast<size_t>(dim);
  const int64_t rows = shapes[static_cast<size_t>(rank)][d];
  return full.narrow(dim, std::min(shape[d] - rows, rank * shapes[0][d]), rows);
}

at::Tensor ShardCut::to_flat(const at::Tensor& full) const {
  if (contiguous) return full.contiguous();
  at::Tensor flat = at::empty({full.numel()}, full.options());
  int64_t offset = 0;
  for (size_t r = 0; r < counts.size(); offset += counts[r++])
    if (counts[r] > 0) flat.narrow(0, offset, counts[r]).view(shapes[r]).copy_(part(full, static_cast<int64_t>(r)));
  return flat;
}

void ShardCut::from_flat(const at::Tensor& flat, const at::Tensor& full) const {
  int64_t offset = 0;
  for (size_t r = 0; r < counts.size(); offset += counts[r++])
    if (counts[r] > 0) part(full, static_cast<int64_t>(r)).copy_(flat.narrow(0, offset, counts[r]).view(shapes[r]));
}

TensorGather::TensorGather(const at::Tensor& local, at::Tensor full, const ShardCut& cut, const Communicator& ranks)
    : local_(local), full_(std::move(full)) {
  if (cut.copies) {
    full_.copy_(local_);
    return;
  }
  if (!cut.contiguous) staging_ = at::empty({full_.numel()}, full_.options());
  void* into = cut.contiguous ? full_.data_ptr() : staging_.data_ptr();
  work_ = ranks.all_gather(local_.data_ptr(), into, cut.counts, wire_dtype(local_), kUnshard);
}

at::Tensor TensorGather::finish(const ShardCut& cut) {
  work_.wait();
  if (staging_.defined()) cut.from_flat(staging_, full_);
  return full_;
}

}  // namespace weft
