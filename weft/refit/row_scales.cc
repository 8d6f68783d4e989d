#include "weft/refit/row_scales.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/base/threads.h"
#include "weft/kernels/element_hash.h"
#include "weft/kernels/quantize.h"

namespace weft {
namespace {

constexpr const char* kScalesPurpose = "refit_scales";
constexpr const char* kScaleChecksPurpose = "refit_checks";

// A row's share in the hash of its tensor's scales.
uint64_t hash_scales(const float* scales, int64_t count, int64_t first) {
  return kernels::hash_elements(std::as_bytes(std::span(scales, static_cast<size_t>(count))), 4, first);
}

// fn(row of the local tensor, row of the whole) for the rows of a rank's boxes.
template <typename Fn>
void for_rows_of(const RefitTensor& tensor, const std::vector<HolderSet>& sets, int64_t rank, const std::vector<int64_t>& local,
                 const Fn& fn) {
  for (const HolderSet& set : sets) {
    if (std::find(set.ranks.begin(), set.ranks.end(), rank) == set.ranks.end()) continue;
    for (const LocalBox& b : set.boxes)
      for (int64_t r = 0; r < num_rows(b.box.size); ++r)
        fn(row_number(b.box.size, r, b.local_offset, local), row_number(b.box.size, r, b.box.offset, tensor.shape));
  }
}

}  // namespace

RowScales::RowScales(const std::vector<RefitTensor>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    first_.push_back(total_);
    rows_.push_back(tensors[i].dtype == DType::kI8 ? num_rows(tensors[i].shape) : 0);
    total_ += static_cast<size_t>(rows_.back());
    if (rows_.back() > 0) tensors_.push_back(i);
  }
}

void RowScales::join(const std::vector<RefitTensor>& tensors, std::span<const TensorPart> sources, const Communicator& ranks) {
  if (total_ == 0) return;
  scales_.assign(total_, 0.0f);  // magnitudes first
  for (const size_t i : tensors_)
    for (const HolderSet& set : tensors[i].from) {
      if (set.ranks[0] != ranks.rank()) continue;
      const TensorPart& part = sources[i];
      for (const LocalBox& b : set.boxes) {
        const std::vector<int64_t>& size = b.box.size;
        const int64_t width = size.empty() ? 1 : size.back(), stride = size.empty() ? 1 : part.shape.back();
        const float* from = reinterpret_cast<const float*>(part.data) + (size.empty() ? 0 : b.local_offset.back());
        constexpr int64_t kLeast = 1 << 15;  // elements a thread takes at least
        // A box has a row once: threads meet in none.
        parallel_for(num_rows(size), std::max<int64_t>(1, kLeast / std::max<int64_t>(1, width)), [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) {
            float& most = scales_[first_[i] + static_cast<size_t>(row_number(size, r, b.box.offset, tensors[i].shape))];
            const float both[] = {most,
                                  kernels::max_magnitude(from + row_number(size, r, b.local_offset, part.shape) * stride, width)};
            most = kernels::max_magnitude(both, 2);
          }
        });
      }
    }
  ranks.all_reduce(scales_.data(), scales_.data(), std::ssize(scales_), DType::kF32, ReduceOp::kMax, kScalesPurpose).wait();
  for (const size_t i : tensors_)
    for (int64_t r = 0; r < rows_[i]; ++r) {
      float& scale = scales_[first_[i] + static_cast<size_t>(r)];
      if (!std::isfinite(scale))
        throw ValueError(
            fmt::format("{}: row {} of {} has a value that is not finite: it cannot become int8", tensors[i].name, r, rows_[i]));
      scale = kernels::row_scale(scale);
    }
}

void RowScales::write(const std::vector<RefitTensor>& tensors, std::span<const TensorPart> destinations, int64_t rank) const {
  for (const size_t i : tensors_)
    if (destinations[i].data && destinations[i].scales)
      for_rows_of(tensors[i], tensors[i].to, rank, destinations[i].shape,
                  [&](int64_t here, int64_t there) { destinations[i].scales[here] = of(i)[there]; });
}

std::string RowScales::where_wrong(const std::vector<RefitTensor>& tensors, std::span<const TensorPart> destinations,
                                   const Communicator& ranks) const {
  if (total_ == 0) return {};
  std::vector<uint64_t> mine;  // of each tensor: the hash, and by how much the destination's is another
  for (const size_t i : tensors_) {
    mine.push_back(hash_scales(of(i), rows_[i], 0));
    uint64_t other = 0;
    if (destinations[i].data && destinations[i].scales)
      for_rows_of(tensors[i], tensors[i].to, ranks.rank(), destinations[i].shape, [&](int64_t here, int64_t there) {
        other += hash_scales(destinations[i].scales + here, 1, there) - hash_scales(of(i) + there, 1, there);
      });
    mine.push_back(other);
  }
  const size_t n = static_cast<size_t>(ranks.size());
  std::vector<uint64_t> all(mine.size() * n);
  ranks.all_gather(mine.data(), all.data(), std::vector<int64_t>(n, std::ssize(mine)), DType::kI64, kScaleChecksPurpose).wait();
  for (size_t t = 0; t < tensors_.size(); ++t)
    for (size_t r = 0; r < n; ++r) {
      const std::string& name = tensors[tensors_[t]].name;
      if (all[r * mine.size() + 2 * t] != all[2 * t])
        return fmt::format("{}: the scales that rank {} has are not those of rank 0", name, r);
      if (all[r * mine.size() + 2 * t + 1] != 0)
        return fmt::format("{}: the scales in the rollout of rank {} are not those of the trainer's rows", name, r);
    }
  return {};
}

}  // namespace weft
