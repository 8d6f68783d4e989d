#pragma once
// `weft train`: GRPO and its kin. Each role has its ranks (roles.h): the rollout's share a step's prompts, the actor's its
// trajectories. A step: sample a group per prompt, score, check parity, (old and reference log-probs), advantages, updates,
// refit, metrics; validation and checkpoints between steps. All ranks of the job run the steps; each does what its roles have to
// do.

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weft/base/progress.h"
#include "weft/train/actor.h"
#include "weft/train/critic.h"
#include "weft/train/data_parallel.h"
#include "weft/train/generate.h"
#include "weft/train/loaded_model.h"
#include "weft/train/metrics.h"
#include "weft/train/optimizer.h"
#include "weft/train/recipe.h"
#include "weft/train/registry.h"
#include "weft/train/role_memory.h"
#include "weft/train/roles.h"
#include "weft/train/rollout_role.h"
#include "weft/train/run_dir.h"
#include "weft/train/train_state.h"

namespace weft {

struct StepData;

// The memory of a run's roles (role_memory.h).
struct RunArenas {
  explicit RunArenas(const Recipe& recipe);
  RoleMemory memory;
  bool limited;  // memory.limit is there
  std::set<Phase> phases;
  ModelArenas actor, reference, teacher, critic, reward_model;
  RolloutArenas rollout;
};

class Trainer {
 public:
  // Every rank of the job makes the same calls.
  Trainer(Recipe recipe, const Registry& registry, Roles roles = {});
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
  std::unique_ptr<LoadedModel> load_frozen(const std::string& path, const ModelArenas& memory) const;
  // Whose routing traces and kept sets this rank will read in the step.
  std::vector<uint8_t> details_wanted(const StepData& data) const;
  // What the step's parity check looks at.
  std::vector<size_t> parity_sample(const StepData& data) const;
  void check_step_parity(StepData& data);
  // Whether the rollout's log-probs are the old ones: no pass of the actor's.
  bool bypassed() const;
  // Those of the reference, and of the weights before the first update where the rollout's own do not serve.
  void compute_log_probs(StepData& data);
  void update(StepData& data, MetricsRow& row);
  void update_critic(StepData& data, MetricsRow& row);
  // The reward model's scores join the rewards. Collective over the job.
  void add_model_rewards(std::vector<ScoredSample>& samples);
  void save(const StepData* under_way);
  // Validates the weights of the step that just ended, or of a new run, and writes the row. A stop is noted in the checkpoint, so
  // that the resumed run does it again.
  void validate_now();
  // Saves and throws StoppedError.
  [[noreturn]] void stop(const std::string& why, const StepData* under_way);
  // Whether there was a checkpoint to go on from.
  bool resume();
  bool parity_promised() const;
  // The actor's weights in the rollout. A refit whose bytes did not arrive is told and done once more; the second failure ends
  // the run.
  void refit_rollout();
  // Before, while and after the roles are made: their arenas; what the limit does not hold sleeps; who sleeps when.
  void add_memory();
  void settle_memory();
  void plan_memory();
  // Collective over the job: what a phase does not need may go to sleep, what it needs is awake afterwards.
  void enter(Phase phase);
  // A line of progress, on the rank that shows it.
  void note(const std::string& text);
  std::string checkpoints() const { return recipe_.run_dir() + "/checkpoints"; }
  ActorOptions actor_options(bool replay) const;
  DType dtype() const;  // of the actor's forward
  int main_rank() const { return roles_.places.actor.ranks[0]; }
  int64_t tokens_generated() const;
  // Collective over the job.
  void add_refit_metrics(MetricsRow& row) const;
  void add_times_trained(StepData& data, MetricsRow& row) const;

  Recipe recipe_;
  const Registry& registry_;
  Roles roles_;
  Job job_;
  DataParallel ranks_, reference_ranks_;
  RunArenas arenas_;
  std::optional<DType> dtype_;                                // of actor and frozen models; none: the checkpoint's
  std::unique_ptr<LoadedModel> actor_, reference_, teacher_;  // null where the rank is not of the role
  ModelFiles files_;                                          // of the actor, on every rank
  std::unique_ptr<CriticRole> critic_;                        // as above
  std::unique_ptr<RewardModel> reward_model_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<PromptSource> train_, val_;
  std::unique_ptr<DatasetSampler> sampler_;
  std::unique_ptr<RewardSet> rewards_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<RolloutRole> rollout_;
  RefitReport refit_report_;
  int64_t refit_failures_ = 0;
  std::unique_ptr<RunDir> run_dir_;  // the main rank
  RouterReplayMode replay_;
  kernels::LogitBias logit_bias_;
  double kl_coef_ = 0;
  int64_t total_steps_ = 0;
  TrainProgress progress_;
  std::unique_ptr<Progress> bar_;  // the main rank
};

// The rewards of a recipe: reward.funcs, then reward.command.
std::unique_ptr<RewardSet> make_rewards(const Recipe& recipe, const Registry& registry);
// The engine that a recipe describes, on a model.
std::unique_ptr<Engine> make_engine(const Recipe& recipe, const ModelFiles& files, CausalLM& model, const Tokenizer& tokenizer,
                                    bool record_routing);

}  // namespace weft
