#pragma once
// The rollout of a run: its engine on its own mesh, and the refits that bring the actor's weights there (docs/refit.md).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/memory.h"
#include "weft/refit/refit.h"
#include "weft/rollout/engine.h"
#include "weft/train/generate.h"
#include "weft/train/recipe.h"
#include "weft/train/roles.h"

namespace weft {

// What the actor's ranks send: refit tensors of a model between two roles, as ranks of `both`. In the order of the parameters.
// `int8`: the weights of its layers' products (model/int8_weights.h) are that, the others of rollout_dtype.
std::vector<RefitTensor> refit_tensors(const ModelConfig& config, at::ScalarType rollout_dtype, const RolePlaces& places,
                                       bool sequence_parallel, const std::vector<std::string>& actor_plan, bool int8 = false);

// Where its weights lie; null: libtorch's memory.
struct RolloutArenas {
  std::shared_ptr<Arena> weights, other_weights;  // taken in turn by transactional refits
  std::shared_ptr<Arena> panels;
  std::shared_ptr<Arena> actor_weights;  // of the actor
  bool sleeps = false;                   // the actor's sleep while it generates, unless all of the rollout's are the actor's
};

class RolloutRole {
 public:
  // Every rank of the job makes it and makes the same calls. `actor`: this rank's part of the model; null where it has none.
  // `make_engine` makes the engine on a model. On one rank the engine runs on the actor's own model, and refits do nothing.
  RolloutRole(const Recipe& recipe, const ModelConfig& config, at::ScalarType actor_dtype, CausalLM* actor, const Roles& roles,
              const std::function<std::unique_ptr<Engine>(CausalLM&)>& make_engine, const RolloutArenas& memory = {});

  // Null where the rank is not of the rollout.
  Engine* engine() const { return engine_.get(); }
  RolloutShare share() const;
  const CausalLM* model() const { return model_.get(); }  // its own; null on one rank
  bool shares_actor_weights() const { return shares_; }
  bool transactional() const { return model_ && !in_place_; }
  // What the engine reads, and what a transactional refit writes next. Null: libtorch's memory.
  Arena* weights() const { return memory_.weights.get(); }
  Arena* other_weights() const { return memory_.other_weights.get(); }

  // The actor has begun to change: where its weights are the rollout's, or will be written over them, there is nothing to
  // generate with until the next refit.
  void actor_changes();
  // The actor's weights, as `version`. Collective over the job. All ranks have them or none: a transactional one that fails
  // leaves the version before, another leaves the rollout without weights until the next succeeds. RefitError, or SystemError
  // where the memory for a second set is not there.
  RefitReport refit(int64_t version);
  // Told after each bucket of a refit, on every rank that takes part.
  void on_refit_progress(std::function<void(int64_t done, int64_t of)> progress) { progress_ = std::move(progress); }
  // What a transactional refit asks before it starts; by default what the machine has (base/memory.h).
  void set_available_memory(std::function<int64_t()> available) { available_ = std::move(available); }
  int64_t version() const { return version_; }
  // Bytes of the rollout's weights on this rank that it does not hold as the actor's.
  int64_t needed_bytes() const { return needed_bytes_; }

 private:
  void check_memory() const;

  CausalLM* actor_;
  std::unique_ptr<CausalLM> model_;  // null: the actor's own, or not of this role
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<const RankMesh> mesh_;
  std::function<void(int64_t, int64_t)> progress_;
  std::function<int64_t()> available_ = available_memory;
  std::optional<Communicator> both_;  // the ranks of actor and rollout; none: this rank is neither, or there is one rank
  std::unique_ptr<Refit> refit_;
  RolloutArenas memory_;
  // Of transactional refits, in other_weights: one a tensor; of those that are not int8 no scales.
  std::vector<at::Tensor> spare_, spare_scales_;
  bool int8_ = false, in_place_ = true, shares_ = false;
  int64_t version_ = -1, needed_bytes_ = 0;
};

}  // namespace weft
