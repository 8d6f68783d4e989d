// Which memory a run has, and who of it sleeps in which phase (docs/memory.md).
#include "weft/base/log.h"
#include "weft/base/memory.h"
#include "weft/parallel/fully_shard.h"
#include "weft/train/trainer.h"

namespace weft {

RunArenas::RunArenas(const Recipe& r)
    : memory(r.memory.limit.empty() ? 0 : parse_bytes(r.memory.limit).value(), r.memory.store_dir),
      limited(!r.memory.limit.empty()) {
  phases = {Phase::kGenerate, Phase::kActorForward, Phase::kUpdate, Phase::kRefit, Phase::kSave};
  if (r.needs_critic()) phases.insert({Phase::kValues, Phase::kUpdateCritic, Phase::kSaveCritic});
  if (r.needs_reference() || !r.teacher_path.empty()) phases.insert(Phase::kReference);
  if (!r.reward_model.path.empty()) phases.insert(Phase::kReward);
}

void Trainer::add_memory() {
  const auto model_of = [](const auto& owner) {
    return [&owner]() -> const CausalLM* { return owner ? &*owner->model : nullptr; };
  };
  RoleMemory& m = arenas_.memory;
  arenas_.actor =
      m.add_model("actor", {Phase::kActorForward}, {Phase::kUpdate}, {Phase::kRefit}, {Phase::kSave}, model_of(actor_));
  arenas_.reference = m.add_model("reference", {Phase::kReference}, {}, {}, {}, model_of(reference_));
  arenas_.teacher = m.add_model("teacher", {Phase::kReference}, {}, {}, {}, model_of(teacher_));
  arenas_.critic = m.add_model("critic", {Phase::kValues}, {Phase::kUpdateCritic}, {}, {Phase::kSaveCritic},
                               [this] { return critic_ ? &critic_->model() : nullptr; });
  arenas_.reward_model = m.add_model("reward_model", {Phase::kReward}, {}, {}, {},
                                     [this] { return reward_model_ ? &reward_model_->model() : nullptr; });
  RolloutArenas& r = arenas_.rollout;
  r.weights = std::make_shared<Arena>("rollout.weights");
  r.other_weights = std::make_shared<Arena>("rollout.weights");
  r.actor_weights = arenas_.actor.parameters.weights;
  r.sleeps = arenas_.limited;
  // Two that transactional refits take in turn.
  const auto live = [this] { return rollout_ ? rollout_->weights() : nullptr; };
  const auto other = [this] { return rollout_ ? rollout_->other_weights() : nullptr; };
  m.add({"rollout.weights",
         {Phase::kGenerate, Phase::kRefit},
         Asleep::kRefit,
         live,
         [live] { return live() ? live()->bytes() : 0; },
         [live] { live()->discard(); },
         [live] { live()->wake(); }});
  m.add({"rollout.new_weights",
         {Phase::kRefit},
         Asleep::kDropped,
         other,
         [this, live] { return rollout_ && rollout_->transactional() ? live()->bytes() : 0; },
         [other] { other()->discard(); },
         [] {}});
  r.panels = m.add("rollout.panels", {Phase::kGenerate}, Asleep::kDropped,
                   [this] { return rollout_ && rollout_->model() ? rollout_->model()->panel_bytes() : 0; });
  const auto engine = [this] { return rollout_ ? rollout_->engine() : nullptr; };
  m.add({"rollout.kv_cache",
         {Phase::kGenerate},
         Asleep::kDropped,
         [engine] { return engine() ? &engine()->kv_cache_arena() : nullptr; },
         [engine] { return engine() ? engine()->kv_cache_bytes() : 0; },
         [this, engine] { engine()->sleep(arenas_.memory.store_dir()); },
         [engine] { engine()->wake(); }});
}

void Trainer::settle_memory() { arenas_.memory.settle(job_.world() && job_.world()->shares_memory() ? job_.size() : 1); }

void Trainer::plan_memory() {
  RoleMemory& m = arenas_.memory;
  if (job_.any(rollout_->shares_actor_weights())) m.also_in("actor.weights", Phase::kGenerate);
  if (!roles_.world) m.also_in("actor.panels", Phase::kGenerate);
  m.plan(job_, arenas_.phases);
  if (job_.main())
    for (const std::string& line : m.describe()) log_info("memory.limit: {}", line);
}

void Trainer::enter(Phase phase) {
  // Its weights were given up for another phase since the last refit.
  if (phase == Phase::kGenerate && arenas_.memory.must_refit()) refit_rollout();
  // Gathered groups that wait for the next forward are in nobody's arena.
  if (arenas_.memory.sleep_plan().sleeps())
    for (const auto* m : {&actor_, &reference_, &teacher_})
      if (*m)
        for (ShardGroup* g : shard_groups(*(*m)->model)) g->reshard();
  arenas_.memory.enter(job_, phase);
}

}  // namespace weft
