#pragma once
// `weft train`: GRPO and its kin. The ranks of a mesh share each step's prompts and trajectories; parameters, gradients and optimizer state
// are sharded, the rollout of each rank holds the whole weights. A step: sample a group per prompt, score, check parity, (old and reference log-probs),
// advantages, updates, metrics; validation and checkpoints between steps.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/progress.h"
#include "weft/train/actor.h"
#include "weft/train/generate.h"
#include "weft/train/loaded_model.h"
#include "weft/train/metrics.h"
#include "weft/train/optimizer.h"
#include "weft/train/recipe.h"
#include "weft/train/registry.h"
#include "weft/train/run_dir.h"
#include "weft/train/train_state.h"

namespace weft {

struct StepData;

class Trainer {
 public:
  // `mesh` null: one rank. Else every rank of the mesh makes the same calls.
  Trainer(Recipe recipe, const Registry& registry, std::shared_ptr<const RankMesh> mesh = nullptr);
  ~Trainer();

  // Runs to the end of the recipe. StoppedError after a signal, once everything a bit-equal resume needs is saved.
  void run();
  // Greedy and mean@k of the validation files, as metric rows "val/<source>/<reward>/mean@n".
  MetricsRow validate();

  int64_t total_steps() const { return total_steps_; }

 private:
  // What a run prints first.
  void announce();
  void step();
  // Prompts from the data, their samples and rewards; with dynamic sampling, until enough groups differ.
  void generate_step(StepData& data);
  // The reward of each prompt's greedy response, for ReMax.
  void add_baselines(StepData& data, uint64_t seed);
  std::unique_ptr<LoadedModel> load_frozen(const std::string& path, std::optional<DType> dtype) const;
  void check_step_parity(StepData& data);
  // Those of the reference, and of the weights before the first update where the rollout's own do not serve.
  void compute_log_probs(StepData& data);
  void update(StepData& data, MetricsRow& row);
  void save(const StepData* under_way);
  // Validates the weights of the step that just ended, or of a new run, and writes the row. A stop is noted in the checkpoint, so that
  // the resumed run does it again.
  void validate_now();
  // Saves and throws StoppedError.
  [[noreturn]] void stop(const std::string& why, const StepData* under_way);
  // Whether there was a checkpoint to go on from.
  bool resume();
  bool parity_promised() const;
  // The rollout's weights after an update, where it has its own.
  void refit_rollout();
  // A line of progress, on the rank that shows it.
  void note(const std::string& text);
  std::string checkpoints() const { return recipe_.run_dir() + "/checkpoints"; }
  ActorOptions actor_options(bool replay) const;

  Recipe recipe_;
  const Registry& registry_;
  std::shared_ptr<const RankMesh> mesh_;
  DataParallel ranks_;
  std::unique_ptr<LoadedModel> actor_, reference_, teacher_;
  std::unique_ptr<CausalLM> rollout_model_;  // null: the actor's own, on one rank
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<PromptSource> train_, val_;
  std::unique_ptr<DatasetSampler> sampler_;
  std::unique_ptr<RewardSet> rewards_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RunDir> run_dir_;  // rank 0
  RouterReplayMode replay_;
  kernels::LogitBias logit_bias_;
  double kl_coef_ = 0;
  int64_t total_steps_ = 0;
  TrainProgress progress_;
  std::unique_ptr<Progress> bar_;  // rank 0
};

// The rewards of a recipe: reward.funcs, then reward.command.
std::unique_ptr<RewardSet> make_rewards(const Recipe& recipe, const Registry& registry);
// The engine that a recipe describes, on a model.
std::unique_ptr<Engine> make_engine(const Recipe& recipe, const LoadedModel& loaded, CausalLM& model, const Tokenizer& tokenizer,
                                    bool record_routing);

}  // namespace weft
