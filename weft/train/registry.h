#pragma once
// What a program adds to weft without a fork: rewards, policy losses, advantages, corrections, model families (docs/extending.md).
//
//   int main(int argc, char** argv) {
//     weft::Registry registry;
//     registry.rewards.add("short", [](const std::string&) { return std::make_unique<ShortReward>(); });
//     registry.policy_losses["mine"] = {my_loss};
//     return weft::main(argc, argv, registry);
//   }

#include <vector>

#include "weft/env/reward_registry.h"
#include "weft/model/families.h"
#include "weft/rl/advantage.h"
#include "weft/rl/correction.h"
#include "weft/rl/policy_loss.h"

namespace weft {

struct Registry {
  RewardRegistry rewards;
  PolicyLossRegistry policy_losses = builtin_policy_losses();
  AdvantageRegistry advantages = builtin_advantages();
  CorrectionRegistry corrections;  // beside token, sequence and geometric
  std::vector<Family> families;  // beside the built-in ones
};

}  // namespace weft
