#pragma once
// The roles of a run - actor, rollout, reference, critic, reward model - each with a mesh and ranks of its own (docs/refit.md).
// Two roles' ranks are the same, or have none in common.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/parallel/rank_mesh.h"
#include "weft/train/recipe.h"

namespace weft {

// Where a role runs: rank i of its mesh is rank ranks[i] of the job. A rollout's dp is dims.fsdp.
struct RolePlace {
  ParallelDims dims;
  std::vector<int> ranks{0};  // ascending
  bool operator==(const RolePlace&) const = default;
};

struct RolePlaces {
  int world = 1;
  RolePlace actor, rollout, reference, critic, reward_model;
  // The ranks of `a` or `b`, ascending.
  static std::vector<int> both(const RolePlace& a, const RolePlace& b);
  bool colocated() const { return actor.ranks == rollout.ranks; }
};

// How many ranks the recipe is for, where no launcher says so: by the ranks it names, else by actor.mesh; 0: as many as there are
// (a mesh has -1).
int64_t ranks_of_recipe(const Recipe& r);
// The entry that asks for them, for messages: `actor.mesh = "fsdp=4"`, `rollout.ranks = "4-7"`.
std::string key_of_ranks(const Recipe& r);

// UsageError for a mesh that does not fit its ranks, ranks that overlap with another role's without being the same (both are
// shown), ranks beyond the world, and a rank without a role.
RolePlaces place_roles(const Recipe& r, int64_t world);
// Of training without a rollout (sft): the actor on all ranks.
RolePlaces place_actor(const Recipe& r, int64_t world);

// One rank's view of them. A mesh is null where the rank is not of the role, and where the job has one rank.
struct Roles {
  Roles() = default;
  // The actor on this mesh, the rollout with whole weights on each of its ranks. Null: one rank.
  Roles(std::shared_ptr<const RankMesh> mesh);

  RolePlaces places;
  std::optional<Communicator> world;  // none: one rank
  std::shared_ptr<const RankMesh> actor, rollout, reference, critic, reward_model;

  bool is_actor() const { return !world || actor; }
  bool is_rollout() const { return !world || rollout; }
  bool is_reference() const { return !world || reference; }
  bool is_critic() const { return !world || critic; }
  bool is_reward_model() const { return !world || reward_model; }
};

// Collective over the world.
Roles make_roles(const RolePlaces& places, const Communicator& world, TokenSharing sharing = {});

}  // namespace weft
