#pragma once
// One rank's place on a run's mesh, with its communicators.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/comm/communicator.h"
#include "weft/mesh/device_mesh.h"
#include "weft/mesh/parallel_dims.h"
#include "weft/mesh/token_sharing.h"

namespace weft {

struct RankMesh {
  ParallelDims dims;
  TokenSharing sharing;
  DeviceMesh dense;   // (replicate, fsdp, tp): where dense parameters live
  DeviceMesh expert;  // (replicate, efsdp, ep): where experts live
  Communicator world;
  Communicator replicate;  // ranks that hold the same shards
  Communicator replica;    // ranks that make one copy of the model: (fsdp, cp, tp)
  Communicator fsdp;       // ranks whose shards make one copy of what tp left, cp included
  Communicator tp, ep, cp;
  Communicator data;  // ranks of one (cp, tp) coordinate: each works on other trajectories
  Communicator rows;  // ranks that share the rows of a micro-batch between the blocks: cp, and with sequence_parallel (cp, tp)

  int64_t rank() const { return world.rank(); }

  // The ranks that differ from this one along an axis of a mesh over the world. Collective over them the first time.
  const Communicator& along(const DeviceMesh& mesh, const std::string& axis) const;
  // An axis in runs of k neighbours (k divides it): this rank's run. Collective over the axis the first time.
  const Communicator& neighbours(const Communicator& axis, int64_t k) const;

  // By name and world ranks.
  mutable std::map<std::pair<std::string, std::vector<int>>, Communicator> known = {};
};

// Collective over the world, whose size is dims.world().
std::shared_ptr<const RankMesh> make_rank_mesh(const ParallelDims& dims, const Communicator& world, TokenSharing sharing = {});

}  // namespace weft
