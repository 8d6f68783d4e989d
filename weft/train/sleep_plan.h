#pragma once
// Whose memory sleeps in which phase of a step (docs/memory.md): decided once, from sizes alone.

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace weft {

// In the order of a step.
enum class Phase { kGenerate, kReward, kActorForward, kReference, kValues, kUpdate, kUpdateCritic, kRefit, kSave, kSaveCritic };
inline constexpr std::array kPhases = {Phase::kGenerate, Phase::kReward,    Phase::kActorForward, Phase::kReference,
                                       Phase::kValues,   Phase::kUpdate,    Phase::kUpdateCritic, Phase::kRefit,
                                       Phase::kSave,     Phase::kSaveCritic};
// "generate", "reward", "log_prob", "reference", "values", "update_actor", "update_critic", "refit", "save", "save_critic".
const char* phase_name(Phase phase);

// A kind of memory, as the plan sees it.
struct MemoryNeed {
  std::string name;            // role.kind
  std::vector<int64_t> bytes;  // of each process
  std::set<Phase> phases;      // that read or write it
  bool discard = false;        // it need not be kept: whoever needs it next makes it anew
};

struct SleepPlan {
  std::map<Phase, std::vector<bool>> asleep;  // by kind
  std::map<Phase, int64_t> peak;              // bytes awake, in the process that has most
  bool sleeps() const;
};

// Nothing sleeps in a phase whose bytes fit into `limit` in every process (0: no limit). Else kinds that it does not need go to
// sleep until they do: first those that need not be kept, then the largest. UsageError that lists what the largest phase needs where that alone does not fit.
SleepPlan plan_sleep(std::span<const MemoryNeed> kinds, std::span<const Phase> phases, int64_t limit);

}  // namespace weft
