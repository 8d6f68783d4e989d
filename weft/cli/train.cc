#include <iostream>

#include "weft/base/signals.h"
#include "weft/base/threads.h"
#include "weft/cli/command.h"
#include "weft/comm/launch.h"
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

// fn on each rank of actor.mesh: threads of this process, or this process as one of mpirun's. Null: one rank alone.
void on_ranks(const Recipe& recipe, const std::function<void(std::shared_ptr<const RankMesh>)>& fn) {
  const LaunchWorld launched = launch_world();
  const ParallelDims dims = actor_mesh(recipe, launched.mpi ? launched.size : 0);
  set_num_threads(static_cast<int>(recipe.trainer.threads));
  install_stop_signals();
  if (!launched.mpi && dims.world() == 1) return fn(nullptr);
  CommOptions options;
  options.threads_per_rank = static_cast<int>(recipe.trainer.threads);
  run_ranks(static_cast<int>(dims.world()), options, [&](Communicator& world) { fn(make_rank_mesh(dims, world)); });
}

}  // namespace

Command train_command() {
  return {"train",
          "Post-trains a model with reinforcement learning (GRPO and its kin), as a recipe says.",
          "RECIPE [section.key=value ...]",
          {{"--print-config", "", "print the resolved recipe with all defaults and stop"}},
          "weft train recipe.toml rollout.n=16 trainer.total_training_steps=100",
          1,
          SIZE_MAX,
          [](const Arguments& args, const Registry& registry) -> int {
            const Recipe recipe = load_recipe(args.positional[0], overrides(args), RecipeUse::kTrain, choices(registry));
            if (args.has("--print-config")) {
              std::cout << print_recipe(recipe);
              return kExitDone;
            }
            on_ranks(recipe, [&](std::shared_ptr<const RankMesh> mesh) { Trainer(recipe, registry, std::move(mesh)).run(); });
            return kExitDone;
          }};
}

Command sft_command() {
  return {"sft",
          "Trains on rows with messages, or prompt and completion, as a recipe says.",
          "RECIPE [section.key=value ...]",
          {{"--print-config", "", "print the resolved recipe with all defaults and stop"}},
          "weft sft recipe.toml actor.optim.lr=1e-3",
          1,
          SIZE_MAX,
          [](const Arguments& args, const Registry& registry) -> int {
            const Recipe recipe = load_recipe(args.positional[0], overrides(args), RecipeUse::kSft, choices(registry));
            if (args.has("--print-config")) {
              std::cout << print_recipe(recipe);
              return kExitDone;
            }
            on_ranks(recipe, [&](std::shared_ptr<const RankMesh> mesh) { SftTrainer(recipe, registry, std::move(mesh)).run(); });
            return kExitDone;
          }};
}

}  // namespace weft
