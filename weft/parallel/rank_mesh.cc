#include "weft/parallel/rank_mesh.h"

#include "weft/base/error.h"

namespace weft {
namespace {

Communicator axis_communicator(const DeviceMesh& mesh, const Communicator& world, const std::string& axis) {
  const std::vector<int64_t> group = mesh.group(world.rank(), axis);
  const std::vector<int> ranks(group.begin(), group.end());
  return world.sub(ranks, axis);
}

}  // namespace

const Communicator& RankMesh::neighbours(int64_t k) const {
  const auto known = runs.find(k);
  if (known != runs.end()) return known->second;
  WEFT_CHECK(k >= 1 && fsdp.size() % k == 0, "runs of {} among {} ranks", k, fsdp.size());
  std::vector<int> ranks;
  for (int64_t i = 0; i < k; ++i) ranks.push_back(static_cast<int>(fsdp.rank() / k * k + i));
  return runs.emplace(k, fsdp.sub(ranks, "fsdp")).first->second;
}

std::shared_ptr<const RankMesh> make_rank_mesh(const ParallelDims& dims, const Communicator& world) {
  WEFT_CHECK(world.size() == dims.world(), "a mesh of {} on {} ranks", dims.world(), world.size());
  const DeviceMesh dense = dims.dense_mesh();
  Communicator replicate = axis_communicator(dense, world, "replicate");
  Communicator fsdp = axis_communicator(dense, world, "fsdp");
  return std::make_shared<RankMesh>(RankMesh{dims, dense, world, std::move(replicate), std::move(fsdp)});
}

}  // namespace weft
