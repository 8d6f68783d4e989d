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

const Communicator& RankMesh::along(const DeviceMesh& mesh, const std::string& axis) const {
  const std::vector<int64_t> group = mesh.group(rank(), axis);
  const std::vector<int> ranks(group.begin(), group.end());
  const auto it = known.find({axis, ranks});
  if (it != known.end()) return it->second;
  return known.emplace(std::pair(axis, ranks), world.sub(ranks, axis)).first->second;
}

const Communicator& RankMesh::neighbours(const Communicator& axis, int64_t k) const {
  WEFT_CHECK(k >= 1 && axis.size() % k == 0, "runs of {} among {} ranks", k, axis.size());
  std::vector<int> members, ranks;
  for (int64_t i = 0; i < k; ++i) {
    members.push_back(static_cast<int>(axis.rank() / k * k + i));
    ranks.push_back(axis.world_rank(members.back()));
  }
  const auto it = known.find({axis.axis(), ranks});
  if (it != known.end()) return it->second;
  return known.emplace(std::pair(axis.axis(), ranks), axis.sub(members, axis.axis())).first->second;
}

std::shared_ptr<const RankMesh> make_rank_mesh(const ParallelDims& dims, const Communicator& world, TokenSharing sharing) {
  WEFT_CHECK(world.size() == dims.world(), "a mesh of {} on {} ranks", dims.world(), world.size());
  const DeviceMesh mesh = dims.mesh(), dense = dims.dense_mesh(), expert = dims.expert_mesh();
  const auto axis = [&](const DeviceMesh& m, const char* name) { return axis_communicator(m, world, name); };
  return std::make_shared<RankMesh>(
      RankMesh{.dims = dims,
               .sharing = sharing,
               .dense = dense,
               .expert = expert,
               .world = world,
               .replicate = axis(dense, "replicate"),
               .replica = axis(mesh.flatten({"fsdp", "cp", "tp"}, "replica"), "replica"),
               .fsdp = axis(dense, "fsdp"),
               .tp = axis(dense, "tp"),
               .ep = axis(expert, "ep"),
               .cp = axis(mesh, "cp"),
               .data = axis(mesh.flatten({"replicate", "fsdp"}, "data"), "data"),
               .rows = sharing.sequence_parallel ? axis(mesh.flatten({"cp", "tp"}, "rows"), "rows") : axis(mesh, "cp")});
}

}  // namespace weft
