#pragma once
// Rank 0 reads boxes of sharded tensors, one at a time and in any order, while the other ranks serve their parts: how one rank
// writes a checkpoint for those that do not see its directory, without ever holding more than one tensor.

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

#include "weft/mesh/layout.h"
#include "weft/parallel/rank_mesh.h"

namespace weft {

class ShardReader {
 public:
  struct Source {
    at::Tensor local;
    Layout layout;
  };
  // The same names and layouts on every rank; layouts have at most 8 dims.
  ShardReader(std::map<std::string, Source> sources, std::shared_ptr<const RankMesh> mesh);

  // Rank 0: the box, contiguous.
  at::Tensor read(const std::string& name, const Box& box);
  at::Tensor read(const std::string& name);  // all of it
  // Rank 0: no more reads; the others return from serve().
  void finish();
  // The other ranks: until rank 0 has finished.
  void serve();

 private:
  static constexpr size_t kDims = 8;
  at::Tensor take_part(const std::vector<int64_t>& request);

  std::map<std::string, Source> sources_;
  std::shared_ptr<const RankMesh> mesh_;
};

}  // namespace weft
