#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <optional>
#include <type_traits>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/signals.h"
#include "weft/base/this_rank.h"
#include "weft/base/threads.h"
#include "weft/base/trace.h"
#include "weft/cli/command.h"
#include "weft/comm/launch.h"
#include "weft/io/atomic_file.h"
#include "weft/train/roles.h"
#include "weft/train/sft.h"
#include "weft/train/trainer.h"

namespace weft {
namespace {

std::vector<std::string> overrides(const Arguments& args) { return {args.positional.begin() + 1, args.positional.end()}; }

// What the program added: the recipe's own checks know the built-in names.
RecipeChoices choices(const Registry& registry) {
  RecipeChoices c;
  const PolicyLossRegistry losses = builtin_policy_losses();
  const AdvantageRegistry advantages = builtin_advantages();
  for (const auto& [name, loss] : registry.policy_losses)
    if (losses.count(name) == 0) c.loss_modes.push_back(name);
  for (const auto& [name, fn] : registry.advantages)
    if (advantages.count(name) == 0) c.adv_estimators.push_back(name);
  for (const auto& [name, fn] : registry.corrections) c.corrections.push_back(name);
  return c;
}

// The ranks that were started, or as many as the recipe is for where it decides.
int64_t started_ranks(const Recipe& recipe, const LaunchWorld& launched) {
  const Environment env = launch_environment();
  const int64_t wanted = ranks_of_recipe(recipe);
  if (wanted == 0 && launched.mpi) return launched.size;
  if (wanted == 0)
    throw UsageError(fmt::format(
        "actor.mesh = \"{}\" fills the ranks that a launcher started, and there is none ({}): use mpirun -n N or srun, or "
        "give the number for ranks that are threads",
        recipe.actor.mesh, describe_launch(launched, env)));
  if (launched.mpi && launched.size > 0 && launched.size != wanted)
    throw UsageError(fmt::format("{}: {}", key_of_ranks(recipe), world_mismatch(static_cast<int>(wanted), launched, env)));
  if (!launched.mpi) check_thread_ranks(wanted, key_of_ranks(recipe));
  return wanted;
}

// What each rank's log begins with.
void log_rank_start(int rank, const LaunchWorld& launched) {
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  const std::string text = fmt::format("started on {}, process {}, {} threads, {}", host, ::getpid(), num_threads(),
                                       describe_launch(launched, launch_environment()));
  write_log_file(rank, LogLevel::kInfo, text);
  if (launched.local_rank == 0 && bound_to_one_core(launched, core_limits().mask, ::sysconf(_SC_NPROCESSORS_ONLN)))
    log_warn("mpirun binds each rank to one core of {}: mpirun --bind-to none gives it its share",
             ::sysconf(_SC_NPROCESSORS_ONLN));
}

// What the model forbids, told before any rank starts, under the key that says so.
void check_meshes(const Recipe& recipe, const Registry& registry, const RolePlaces& places, bool train) {
  const auto check = [&](const char* key, const std::string& path, const ParallelDims& dims, TokenSharing sharing,
                         const std::vector<std::string>& plan, const std::string& text) {
    if (dims.world() == 1) return;
    try {
      check_model_on_mesh(path, registry.families, dims, sharing, plan);
    } catch (const UsageError& e) {
      throw UsageError(fmt::format("{} = \"{}\": {}", key, text, e.what()));
    }
  };
  check("actor.mesh", recipe.model.path, places.actor.dims, actor_sharing(recipe), recipe.actor.plan, recipe.actor.mesh);
  if (!train) return;
  check("rollout.mesh", recipe.model.path, places.rollout.dims, {}, {}, rollout_text(places.rollout.dims));
  if (recipe.needs_reference() && !(places.reference.dims == places.actor.dims))
    check("reference.mesh", recipe.reference.path, places.reference.dims, actor_sharing(recipe), {}, recipe.reference.mesh);
}

// A run on each rank: threads of this process, or this process as one of a launcher's. Each rank's log is opened when its trainer
// stands, or one of several has failed to: a wrong recipe leaves no run directory.
template <class SomeTrainer>
void run_on_ranks(const Recipe& recipe, const Registry& registry) {
  constexpr bool kTrain = std::is_same_v<SomeTrainer, Trainer>;
  const LaunchWorld launched = launch_world();
  const int64_t world_size = started_ranks(recipe, launched);
  const RolePlaces places = kTrain ? place_roles(recipe, world_size) : place_actor(recipe, world_size);
  check_meshes(recipe, registry, places, kTrain);
  set_num_threads(static_cast<int>(recipe.trainer.threads));
  install_stop_signals();
  const auto run = [&](int rank, auto ranks) {
    const std::string logs = recipe.run_dir() + "/logs";
    hold_rank_log(rank);
    log_rank_start(rank, launched);
    std::optional<SomeTrainer> trainer;
    try {
      trainer.emplace(recipe, registry, std::move(ranks));
    } catch (const UsageError&) {
      throw;
    } catch (...) {
      if (world_size > 1) open_rank_log(logs, rank);  // one rank alone has said all on the terminal
      throw;
    }
    open_rank_log(logs, rank);
    trainer->run();
  };
  if (!launched.mpi && world_size == 1) return run(0, std::shared_ptr<const RankMesh>());
  CommOptions options;
  options.threads_per_rank = static_cast<int>(recipe.trainer.threads);
  options.timeout_s = recipe.comm.timeout;
  options.heartbeat_s = recipe.comm.heartbeat;
  options.progress = recipe.comm.progress == "background" ? CommProgress::kBackground
                     : recipe.comm.progress == "inline"   ? CommProgress::kInline
                                                          : CommProgress::kAuto;
  run_ranks(static_cast<int>(world_size), options, [&](Communicator& world) {
    if constexpr (kTrain)
      run(world.rank(), make_roles(places, world, actor_sharing(recipe)));
    else
      run(world.rank(), make_rank_mesh(places.actor.dims, world, actor_sharing(recipe)));
  });
}

// The trace of a process whose ranks are all here goes to `path`; of one of several, beside it, with the rank in its name.
std::string trace_path(const std::string& path, int rank) {
  if (rank < 0) return path;
  const std::filesystem::path p(path);
  return (p.parent_path() / fmt::format("{}.rank_{}{}", p.stem().string(), rank, p.extension().string())).string();
}

// Runs fn with a trace, which is also written when fn throws.
void traced(const Arguments& args, const std::function<void()>& fn) {
  const std::string path = args.get("--trace");
  if (path.empty()) return fn();
  if (const std::filesystem::path folder = std::filesystem::path(path).parent_path();
      !folder.empty() && !std::filesystem::is_directory(folder))
    throw UsageError(fmt::format("--trace {}: there is no directory {}", path, folder.string()));
  start_trace();
  const auto write = [&] {
    stop_trace();
    write_file_atomically(trace_path(path, this_rank()), trace_json());
    if (const int64_t dropped = trace_dropped(); dropped > 0)
      log_warn("--trace: the {} oldest events of busy threads were dropped; what is left is whole from the end backwards",
               dropped);
  };
  try {
    fn();
  } catch (...) {
    write();
    throw;
  }
  write();
}

const Option kPrintConfig{"--print-config", "", "print the resolved recipe with all defaults and stop"};
const Option kTrace{"--trace", "FILE",
                    "write a trace of phases and communication for Perfetto; processes: FILE with .rank_N in its name"};

}  // namespace

Command train_command() {
  return {"train",
          "Post-trains a model with reinforcement learning (GRPO and its kin), as a recipe says.",
          "RECIPE [section.key=value ...]",
          {kPrintConfig, kTrace},
          "weft train recipe.toml rollout.n=16 trainer.total_training_steps=100",
          1,
          SIZE_MAX,
          [](const Arguments& args, const Registry& registry) -> int {
            const Recipe recipe = load_recipe(args.positional[0], overrides(args), RecipeUse::kTrain, choices(registry));
            if (args.has("--print-config")) {
              std::cout << print_recipe(recipe);
              return kExitDone;
            }
            traced(args, [&] { run_on_ranks<Trainer>(recipe, registry); });
            return kExitDone;
          }};
}

Command sft_command() {
  return {"sft",
          "Trains on rows with messages, or prompt and completion, as a recipe says.",
          "RECIPE [section.key=value ...]",
          {kPrintConfig, kTrace},
          "weft sft recipe.toml actor.optim.lr=1e-3",
          1,
          SIZE_MAX,
          [](const Arguments& args, const Registry& registry) -> int {
            const Recipe recipe = load_recipe(args.positional[0], overrides(args), RecipeUse::kSft, choices(registry));
            if (args.has("--print-config")) {
              std::cout << print_recipe(recipe);
              return kExitDone;
            }
            traced(args, [&] { run_on_ranks<SftTrainer>(recipe, registry); });
            return kExitDone;
          }};
}

}  // namespace weft
