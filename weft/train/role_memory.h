#pragma once
// The memory of a run's roles by kind ("actor.optimizer"), each in an arena of its own, and who of it sleeps while a phase runs
// (docs/memory.md). Without memory.limit nothing sleeps; peaks are measured all the same.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weft/base/arena.h"
#include "weft/model/causal_lm.h"
#include "weft/train/job.h"
#include "weft/train/metrics.h"
#include "weft/train/sleep_plan.h"

namespace weft {

// What becomes of contents that sleep.
enum class Asleep {
  kKept,     // in a file
  kDropped,  // made anew by whoever reads them: panels, zeroed gradients, an empty cache
  kRefit,    // made anew by the next refit, without which reading them is an error
};

// Of a role that is a model.
struct ModelArenas {
  nn::ParameterMemory parameters;
  std::shared_ptr<Arena> optimizer;
};

class RoleMemory {
 public:
  struct Kind {
    std::string name;  // role.kind
    std::set<Phase> phases;
    Asleep asleep = Asleep::kKept;
    std::function<const Arena*()> arena;  // null: this rank has none
    std::function<int64_t()> bytes;       // once all of it is in use
    std::function<void()> sleep, wake;    // on a rank that has one
  };

  // `limit` bytes of a process, 0: none. Kept contents go to `store_dir`, which is made when it is needed.
  RoleMemory(int64_t limit, std::string store_dir) : limit_(limit), store_dir_(std::move(store_dir)) {}
  ~RoleMemory();
  RoleMemory(const RoleMemory&) = delete;
  RoleMemory& operator=(const RoleMemory&) = delete;

  // All ranks add the same kinds in the same order, also those that have none of it. A kind that is an arena and no more:
  std::shared_ptr<Arena> add(const std::string& name, std::set<Phase> phases, Asleep asleep, std::function<int64_t()> bytes = {});
  void add(Kind kind);
  // role.weights, role.panels and, with phases of updates, role.gradients and role.optimizer. `forward`: phases that run it,
  // `other`: that read or write its weights besides, `state`: that read or write weights and optimizer. `model`: null where the
  // rank is not of the role.
  ModelArenas add_model(const std::string& role, const std::set<Phase>& forward, const std::set<Phase>& update,
                        const std::set<Phase>& other, const std::set<Phase>& state, std::function<const CausalLM*()> model);
  void also_in(const std::string& name, Phase phase);
  const std::string& store_dir() const { return store_dir_; }

  // With a limit: puts to sleep what is in memory and is to be kept, until plan(): a run's models are loaded one after the other.
  void settle(int64_t ranks_of_process);
  // Collective over the job, when all kinds have their final sizes. UsageError where a phase does not fit.
  void plan(const Job& job, const std::set<Phase>& phases);
  const SleepPlan& sleep_plan() const { return plan_; }
  // One line a phase: what sleeps.
  std::vector<std::string> describe() const;

  // Collective over the job. What the phase does not need goes to sleep, as planned, then what it needs wakes.
  void enter(const Job& job, Phase phase);
  // Whether contents of an Asleep::kRefit kind are gone; refitted() once they are there again. The same on all ranks.
  bool must_refit() const { return must_refit_; }
  void refitted() { must_refit_ = false; }

  // memory/peak_mb/<phase> of the process that has most, and what went to the files and back, since the last call. Collective.
  void report(const Job& job, MetricsRow& row);

 private:
  void measure();
  int64_t resident() const;
  void store(Arena& arena);

  int64_t limit_;
  std::string store_dir_;
  std::vector<Kind> kinds_;
  SleepPlan plan_;
  std::optional<Phase> phase_;
  std::map<Phase, int64_t> peaks_;
  Arena::Traffic reported_;
  double seconds_ = 0;
  bool made_dir_ = false;
  bool must_refit_ = false;
};

}  // namespace weft
