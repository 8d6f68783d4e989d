#include "weft/train/roles.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "weft/base/error.h"

namespace weft {
namespace {

std::vector<int> all_ranks(int64_t world) {
  std::vector<int> out(static_cast<size_t>(world));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int>(i);
  return out;
}

// A role as the recipe has it.
struct Asked {
  const char* name;
  const std::string& mesh;
  const std::string& ranks;
  bool rollout;
};

RolePlace place(const Asked& role, int64_t world) {
  RolePlace out;
  const std::string key = fmt::format("{}.ranks", role.name);
  out.ranks = role.ranks.empty() ? all_ranks(world) : parse_ranks(role.ranks, key);
  if (out.ranks.back() >= world)
    throw UsageError(fmt::format("{} = \"{}\": there are {} ranks, 0 to {}", key, role.ranks, world, world - 1));
  const int64_t n = std::ssize(out.ranks);
  try {
    out.dims = role.rollout ? parse_rollout_dims(role.mesh, n, {"oe"}) : parse_parallel_dims(role.mesh, n, {"oe"});
  } catch (const UsageError& e) {
    throw UsageError(fmt::format("{}.mesh: {}{}", role.name, e.what(),
                                 role.ranks.empty() ? "" : fmt::format(" ({} = \"{}\")", key, role.ranks)));
  }
  return out;
}

std::vector<std::pair<std::string, RolePlace>> named(const RolePlaces& p) {
  return {{"actor", p.actor},
          {"rollout", p.rollout},
          {"reference", p.reference},
          {"critic", p.critic},
          {"reward_model", p.reward_model}};
}

// How many ranks (0: as many as there are) and the entry that says so.
std::pair<int64_t, std::string> asked_ranks(const Recipe& r) {
  std::pair<int64_t, std::string> most;
  for (const auto& [key, ranks] : {std::pair("actor.ranks", &r.actor.ranks),
                                   {"rollout.ranks", &r.rollout.ranks},
                                   {"reference.ranks", &r.reference.ranks},
                                   {"critic.ranks", &r.critic.ranks},
                                   {"reward_model.ranks", &r.reward_model.ranks}}) {
    const int64_t n = ranks->empty() ? 0 : parse_ranks(*ranks, key).back() + 1;
    if (n > most.first) most = {n, fmt::format("{} = \"{}\"", key, *ranks)};
  }
  if (most.first > 0) return most;
  return {r.actor.mesh.find("-1") != std::string::npos ? 0 : actor_mesh(r, 0).world(),
          fmt::format("actor.mesh = \"{}\"", r.actor.mesh)};
}

}  // namespace

std::vector<int> RolePlaces::both(const RolePlace& a, const RolePlace& b) {
  std::vector<int> out;
  std::set_union(a.ranks.begin(), a.ranks.end(), b.ranks.begin(), b.ranks.end(), std::back_inserter(out));
  return out;
}

int64_t ranks_of_recipe(const Recipe& r) { return asked_ranks(r).first; }
std::string key_of_ranks(const Recipe& r) { return asked_ranks(r).second; }

RolePlaces place_actor(const Recipe& r, int64_t world) {
  RolePlaces p;
  p.world = static_cast<int>(world);
  p.actor = {actor_mesh(r, world), all_ranks(world)};
  return p;
}

RolePlaces place_roles(const Recipe& r, int64_t world) {
  if (world > 1 && r.trainer.device != "cpu")
    throw UsageError(
        fmt::format("{} ranks with trainer.device = \"{}\": several ranks need the CPU so far", world, r.trainer.device));
  RolePlaces p;
  p.world = static_cast<int>(world);
  p.actor = place({"actor", r.actor.mesh, r.actor.ranks, false}, world);
  const std::string fill = "dp=-1";
  p.rollout = place({"rollout", r.rollout.mesh.empty() ? fill : r.rollout.mesh, r.rollout.ranks, true}, world);
  const auto like_actor = [&](const char* name, const std::string& mesh, const std::string& ranks) {
    return mesh.empty() && ranks.empty() ? p.actor : place({name, mesh.empty() ? r.actor.mesh : mesh, ranks, false}, world);
  };
  p.reference = like_actor("reference", r.reference.mesh, r.reference.ranks);
  p.critic = like_actor("critic", r.critic.mesh, r.critic.ranks);
  p.reward_model = like_actor("reward_model", r.reward_model.mesh, r.reward_model.ranks);
  std::vector<bool> used(static_cast<size_t>(world));
  const auto roles = named(p);
  for (const auto& [name, role] : roles) {
    for (const auto& [other_name, other] : roles) {
      if (role.ranks == other.ranks) continue;
      std::vector<int> common;
      std::set_intersection(role.ranks.begin(), role.ranks.end(), other.ranks.begin(), other.ranks.end(),
                            std::back_inserter(common));
      if (!common.empty())
        throw UsageError(
            fmt::format("{} has ranks {} and {} has ranks {}: two roles have the same ranks, or none in common "
                        "({}.ranks, {}.ranks)",
                        name, fmt::join(role.ranks, ","), other_name, fmt::join(other.ranks, ","), name, other_name));
    }
    for (int rank : role.ranks) used[static_cast<size_t>(rank)] = true;
  }
  for (size_t rank = 0; rank < used.size(); ++rank)
    if (!used[rank]) throw UsageError(fmt::format("rank {} of {} has no role (actor.ranks, rollout.ranks)", rank, world));
  return p;
}

Roles::Roles(std::shared_ptr<const RankMesh> mesh) {
  if (!mesh) return;
  const int64_t n = mesh->world.size();
  const RolePlace actor_place{mesh->dims, all_ranks(n)};
  places = {static_cast<int>(n), actor_place, {parse_rollout_dims("dp=-1", n), all_ranks(n)},
            actor_place,         actor_place, actor_place};
  world = mesh->world;
  rollout = make_rank_mesh(places.rollout.dims, mesh->world);
  actor = reference = critic = reward_model = std::move(mesh);
}

Roles make_roles(const RolePlaces& places, const Communicator& world, TokenSharing sharing) {
  Roles out;
  out.places = places;
  out.world = world;
  const auto mesh = [&](const RolePlace& p, const char* name, TokenSharing how) -> std::shared_ptr<const RankMesh> {
    if (!std::binary_search(p.ranks.begin(), p.ranks.end(), world.rank())) return nullptr;
    return make_rank_mesh(p.dims, std::ssize(p.ranks) == world.size() ? world : world.sub(p.ranks, name), how);
  };
  out.actor = mesh(places.actor, "actor", sharing);
  out.rollout = mesh(places.rollout, "rollout", {});
  const auto like_actor = [&](const RolePlace& p, const char* name) {
    return p == places.actor ? out.actor : mesh(p, name, sharing);
  };
  out.reference = like_actor(places.reference, "reference");
  out.critic = like_actor(places.critic, "critic");
  out.reward_model = like_actor(places.reward_model, "reward_model");
  return out;
}

}  // namespace weft
