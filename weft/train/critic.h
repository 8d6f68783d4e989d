#pragma once
// The critic of PPO: the value of each state, by a model with a score head (arXiv:1707.06347, arXiv:1506.02438). The value of a
// response token is that of the state before it: of the row that predicts it.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/io/trajectory.h"
#include "weft/train/data_parallel.h"
#include "weft/train/loaded_model.h"
#include "weft/train/metrics.h"
#include "weft/train/optimizer.h"
#include "weft/train/recipe.h"
#include "weft/train/registry.h"
#include "weft/train/role_memory.h"
#include "weft/train/step_data.h"
#include "weft/train/train_state.h"

namespace weft {

// Scores at the rows before each response token, in order: per-row offsets and fp32 values.
struct ScoreOutput {
  std::vector<int64_t> offsets;  // [rows+1]
  std::vector<float> values;     // [R]
};
ScoreOutput score_forward(CausalLM& model, std::span<const Trajectory* const> trajectories);
// Forward, then loss(output) -> d loss / d value per token, then backward into the parameters' fp32 gradients.
ScoreOutput score_backward(CausalLM& model, std::span<const Trajectory* const> trajectories, bool recompute,
                           const std::function<std::vector<double>(const ScoreOutput&)>& loss);

// What update() reports, in this order.
inline constexpr const char* kCriticMetrics[] = {"critic/vf_loss", "critic/vf_clipfrac", "critic/vpred_mean", "critic/grad_norm",
                                                 "critic/lr"};

class CriticRole {
 public:
  // On the critic's ranks, which make the same calls. `mesh` null: one rank. `steps`: of the whole run.
  CriticRole(const Recipe& recipe, const Registry& registry, std::shared_ptr<const RankMesh> mesh, int64_t steps,
             const ModelArenas& memory = {});

  // [trajectory][response]; the same on all ranks.
  std::vector<std::vector<float>> values(const std::vector<const Trajectory*>& trajectories);

  // One step's updates on data.returns, with data.values as the old ones, in the actor's mini-batches. Not interrupted by a stop:
  // the checkpoint of a step under way has the critic before them. Means over the step, in verl's names.
  MetricsRow update(const StepData& data);

  // Beside the actor's checkpoints, under critic/; one more than `max_keep`, for a save that is killed before the
  // actor's, and that of the actor's checkpoint `spare`.
  void save(const std::string& checkpoints_dir, int64_t step, int64_t max_keep, const std::string& spare);
  // Of the actor's checkpoint of that name and step. FileError where there is none.
  void load(const std::string& actor_checkpoint, int64_t step);
  int64_t vocab_size() const { return model_.config.vocab_size; }
  const CausalLM& model() const { return *model_.model; }

 private:
  const Recipe& recipe_;
  DataParallel ranks_;
  LoadedModel model_;
  std::unique_ptr<Optimizer> optimizer_;
  int64_t updates_ = 0;
};

// The reward model's name among a trajectory's rewards.
inline constexpr const char* kModelReward = "reward_model";

// A reward model: a sequence classifier with one label. The score of a trajectory is that of its last token.
class RewardModel {
 public:
  RewardModel(const Recipe& recipe, const Registry& registry, std::shared_ptr<const RankMesh> mesh, const ModelArenas& memory = {});
  // One score a trajectory; the same on all ranks of the role, which make the same calls.
  std::vector<float> scores(const std::vector<const Trajectory*>& trajectories);
  int64_t vocab_size() const { return model_.config.vocab_size; }
  const std::string& dir() const { return model_.dir; }
  const CausalLM& model() const { return *model_.model; }

 private:
  const Recipe& recipe_;
  DataParallel ranks_;
  LoadedModel model_;
};

}  // namespace weft
