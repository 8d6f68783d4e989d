#pragma once
// The scales of what travels as int8: one for each row (the last dim) of the whole tensor, whoever holds parts of it, so that the
// trainer's mesh changes no bit. Their bytes are counted apart ("refit_scales").

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weft/comm/communicator.h"
#include "weft/mesh/refit_plan.h"
#include "weft/refit/tensor_part.h"

namespace weft {

class RowScales {
 public:
  explicit RowScales(const std::vector<RefitTensor>& tensors);

  // Collective. Each rank looks through its boxes of the fp32 sources for the largest magnitude in each row, of a box that
  // several ranks hold the first one; then all ranks have the maximum, which depends on no order. 4 bytes a row of all int8
  // tensors. ValueError on all ranks alike for a value that is not finite, with its tensor and row.
  void join(const std::vector<RefitTensor>& tensors, std::span<const TensorPart> sources, const Communicator& ranks);
  // Of all rows of a tensor; null where it is not int8.
  const float* of(size_t tensor) const { return rows_[tensor] == 0 ? nullptr : scales_.data() + first_[tensor]; }
  // Those of a rank's rows to its destinations.
  void write(const std::vector<RefitTensor>& tensors, std::span<const TensorPart> destinations, int64_t rank) const;
  // Collective. Whether all ranks have the same, in their destinations too: else what differs, the same text on all ranks.
  std::string where_wrong(const std::vector<RefitTensor>& tensors, std::span<const TensorPart> destinations,
                          const Communicator& ranks) const;
  void drop() { scales_ = {}; }

 private:
  std::vector<size_t> first_;    // of each tensor, in scales_
  std::vector<int64_t> rows_;    // 0 where it is not int8
  std::vector<size_t> tensors_;  // that are
  size_t total_ = 0;
  std::vector<float> scales_;
};

}  // namespace weft
