#pragma once
// One rank's place on a run's mesh, with its communicators.

#include <map>
#include <memory>

#include "weft/comm/communicator.h"
#include "weft/mesh/device_mesh.h"
#include "weft/mesh/parallel_dims.h"

namespace weft {

struct RankMesh {
  ParallelDims dims;
  DeviceMesh dense;  // (replicate, fsdp, tp): where dense parameters live
  Communicator world;
  Communicator replicate;  // ranks that hold the same shards
  Communicator fsdp;       // ranks whose shards make one copy

  // The fsdp axis in runs of k neighbours (k divides it): this rank's run. Collective over fsdp the first time.
  const Communicator& neighbours(int64_t k) const;
  mutable std::map<int64_t, Communicator> runs = {};

  int64_t rank() const { return world.rank(); }
};

// Collective over the world, whose size is dims.world().
std::shared_ptr<const RankMesh> make_rank_mesh(const ParallelDims& dims, const Communicator& world);

}  // namespace weft
