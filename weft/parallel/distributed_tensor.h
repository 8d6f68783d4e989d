#pragma once
// A tensor whose parts lie on the ranks of a mesh (PyTorch's DTensor): this rank's part and the layout.

#include <ATen/core/Tensor.h>

#include <memory>

#include "weft/mesh/layout.h"
#include "weft/parallel/rank_mesh.h"

namespace weft {

class DistributedTensor {
 public:
  // `local` is this rank's part: contiguous, on the CPU, of layout.local_shape(rank) (ValueError else). Shares its memory.
  static DistributedTensor from_local(at::Tensor local, Layout layout, std::shared_ptr<const RankMesh> mesh);
  // Cuts this rank's part out of a tensor that every rank holds (of partial axes coordinate 0 keeps the value). No communication.
  static DistributedTensor distribute(const at::Tensor& full, Layout layout, std::shared_ptr<const RankMesh> mesh);

  const at::Tensor& local() const { return local_; }
  const Layout& layout() const { return layout_; }

  // Collective over the mesh. The bytes are those of mesh/redistribute.h, the bits do not depend on the engine.
  DistributedTensor redistribute(const Layout& to) const;
  at::Tensor full_tensor() const;

 private:
  DistributedTensor(at::Tensor local, Layout layout, std::shared_ptr<const RankMesh> mesh);

  at::Tensor local_;
  Layout layout_;
  std::shared_ptr<const RankMesh> mesh_;
};

// Fills each rank's part of a tensor that rank `root` has whole (`full` is not read elsewhere). Collective over the
// world; each rank receives its part and nothing else.
void scatter_tensor(const at::Tensor& full, int64_t root, const Layout& layout, const at::Tensor& local, const RankMesh& mesh);

}  // namespace weft
