#pragma once
// One tensor cut over the ranks of one communicator, and its gather under way.

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "weft/comm/communicator.h"

namespace weft {

// ValueError for dtypes that do not travel (complex, quantised).
DType wire_dtype(const at::Tensor& t);

struct ShardCut {
  std::vector<int64_t> shape;
  bool copies = false;  // not cut: every rank keeps all of it
  int64_t dim = 0;
  std::vector<int64_t> counts;               // elements by rank
  std::vector<std::vector<int64_t>> shapes;  // local shapes by rank; an empty shard keeps its other dims
  bool contiguous = false;                   // the shards one after the other are the tensor

  // Ceil chunks of `dim`, as torch.chunk; no dim: copies.
  ShardCut(std::vector<int64_t> tensor_shape, std::optional<int64_t> cut_dim, int64_t ranks);

  // The place of a rank's shard in `full`: a view.
  at::Tensor part(const at::Tensor& full, int64_t rank) const;
  // Shards one behind the other [numel] <-> `full`. to_flat may return `full` itself.
  at::Tensor to_flat(const at::Tensor& full) const;
  void from_flat(const at::Tensor& flat, const at::Tensor& full) const;
};

// A gather of `local` (contiguous, of the rank's local shape) into `full` (contiguous, of the tensor's shape). Collective.
class TensorGather {
 public:
  TensorGather(const at::Tensor& local, at::Tensor full, const ShardCut& cut, const Communicator& ranks);
  // Waits; returns `full`.
  at::Tensor finish(const ShardCut& cut);

 private:
  at::Tensor local_, full_, staging_;
  Work work_;
};

}  // namespace weft
