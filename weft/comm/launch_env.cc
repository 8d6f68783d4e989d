#include "weft/comm/launch_env.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr const char* kVariables[] = {"OMPI_COMM_WORLD_SIZE",
                                      "OMPI_COMM_WORLD_RANK",
                                      "OMPI_COMM_WORLD_LOCAL_RANK",
                                      "OMPI_COMM_WORLD_LOCAL_SIZE",
                                      "PMI_SIZE",
                                      "PMI_RANK",
                                      "PMIX_RANK",
                                      "SLURM_STEP_NUM_TASKS",
                                      "SLURM_PROCID",
                                      "SLURM_LOCALID",
                                      "SLURM_STEP_TASKS_PER_NODE",
                                      "SLURM_NODEID",
                                      "SLURM_NTASKS"};

// -1 where it is not set.
int number(const Environment& env, const std::string& name) {
  const auto it = env.find(name);
  if (it == env.end()) return -1;
  int n = -1;
  const char *begin = it->second.data(), *end = begin + it->second.size();
  const auto [stop, error] = std::from_chars(begin, end, n);
  if (error != std::errc() || stop != end || n < 0)
    throw UsageError(
        fmt::format("the environment variable {} = \"{}\" should hold a number: it is the launcher's to set", name, it->second));
  return n;
}

// Tasks of one node, from "2(x3),1": node 0, 1 and 2 have 2, node 3 has 1. 0 where it does not say.
int tasks_of_node(const std::string& text, int node) {
  const char *at = text.data(), *end = at + text.size();
  while (at < end && node >= 0) {
    int tasks = 0, times = 1;
    auto [stop, error] = std::from_chars(at, end, tasks);
    if (error != std::errc()) return 0;
    if (end - stop > 2 && stop[0] == '(' && stop[1] == 'x') {
      const auto [after, bad] = std::from_chars(stop + 2, end, times);
      if (bad != std::errc() || after == end || *after != ')') return 0;
      stop = after + 1;
    }
    if (node < times) return tasks;
    node -= times;
    at = stop < end && *stop == ',' ? stop + 1 : end;
  }
  return 0;
}

}  // namespace

LaunchWorld read_launch(const Environment& env) {
  LaunchWorld w;
  struct Launcher {
    const char *name, *size, *rank;
  };
  for (const Launcher& l : {Launcher{"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                            {"PMI", "PMI_SIZE", "PMI_RANK"},
                            {"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}}) {
    const int size = number(env, l.size);
    // mpiexec may have used srun to start itself on each node; where both say the same, it was srun with PMI.
    if (size <= 0 || (std::string_view(l.name) == "PMI" && size == number(env, "SLURM_STEP_NUM_TASKS"))) continue;
    w = {true, l.name, l.size, size, number(env, l.rank), -1, 0};
    if (w.rank >= size)
      throw UsageError(
          fmt::format("{} = {} and {} = {} contradict each other: were they set by hand?", l.size, size, l.rank, w.rank));
    break;
  }
  if (w.launcher == "mpirun") {
    w.local_rank = number(env, "OMPI_COMM_WORLD_LOCAL_RANK");
    w.local_size = std::max(number(env, "OMPI_COMM_WORLD_LOCAL_SIZE"), 0);
  } else if (w.launcher == "srun") {
    w.local_rank = number(env, "SLURM_LOCALID");
    const auto tasks = env.find("SLURM_STEP_TASKS_PER_NODE");
    if (tasks != env.end()) w.local_size = tasks_of_node(tasks->second, std::max(number(env, "SLURM_NODEID"), 0));
  } else if (!w.mpi && env.count("PMIX_RANK")) {
    w = {true, "PMIx", "PMIX_RANK", 0, number(env, "PMIX_RANK"), -1, 0};
  }
  return w;
}

std::string describe_launch(const LaunchWorld& world, const Environment& env) {
  std::string out = "no launcher";
  if (world.size > 0 && world.mpi)
    out = fmt::format("{} started {} ({} = {})", world.launcher, world.size, world.from, world.size);
  if (world.mpi && world.size == 0) out = fmt::format("{} ({} is set)", world.launcher, world.from);
  if (world.rank >= 0) out += fmt::format(", this is rank {}", world.rank);
  if (world.local_size > 0) out += fmt::format(", one of {} on this host", world.local_size);
  for (const char* other : {"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "PMI_SIZE"})
    if (const auto it = env.find(other); it != env.end() && other != world.from)
      out += fmt::format("; {} = {}", other, it->second);
  return out;
}

std::string world_mismatch(int mesh, const LaunchWorld& world, const Environment& env) {
  return fmt::format(
      "the mesh has {} ranks, and the launcher started {}: {}. Start as many as the mesh has ({}), or let an axis fill what "
      "was started: actor.mesh=fsdp=-1",
      mesh, world.size, describe_launch(world, env),
      world.launcher == "srun" ? fmt::format("srun --ntasks={}", mesh) : fmt::format("mpirun -n {}", mesh));
}

bool bound_to_one_core(const LaunchWorld& world, int mask, int64_t online) {
  return world.launcher == "mpirun" && world.local_size >= 1 && world.local_size <= 2 && mask <= 2 && online >= 4 * mask;
}

Environment launch_environment() {
  Environment env;
  for (const char* name : kVariables)
    if (const char* value = std::getenv(name)) env[name] = value;
  return env;
}

}  // namespace weft
