#pragma once
// The trainer's forward over trajectories: log-probs of response tokens as they were sampled (temperature, logit bias, kept
// sets), and the backward from per-token gradients. Legend: R response tokens of a micro-batch.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/io/trajectory.h"
#include "weft/model/causal_lm.h"
#include "weft/model/routing.h"

namespace weft {

enum class RouterReplayMode { kDisabled, kR2, kR3 };
// "disabled", "R2", "R3"; UsageError for others.
RouterReplayMode parse_router_replay(const std::string& name);

// Trajectories [begin, end) of a list. The order of the list is kept: bits of forward values do not depend on the split.
using MicroBatch = std::span<const Trajectory* const>;
// The same trajectories in order, each micro-batch filled up to max_tokens fed tokens (a longer trajectory gets one of its own).
std::vector<MicroBatch> split_micro_batches(MicroBatch trajectories, int64_t max_tokens);

struct ActorOptions {
  bool recompute = false;
  bool entropy = false;
  // Replay the trajectories' traces (R3, and R2's updates), or record into `record`.
  bool replay = false;
  std::vector<RoutingTrace>* record = nullptr;  // one a trajectory, appended
  const kernels::LogitBias* logit_bias = nullptr;
  // Weight of the router's auxiliary loss of each sequence; 0: none. Live routing only, and not with recompute.
  double router_aux = 0;
};

// Response tokens of a micro-batch, in order: per-row offsets and fp32 values.
struct ActorOutput {
  std::vector<int64_t> offsets;  // [rows+1]
  std::vector<float> log_probs;  // [R]
  std::vector<float> entropy;    // [R] when asked for
  double router_aux = 0;         // the auxiliary loss before its weight (router_aux.h)
};

// Forward without gradients.
ActorOutput actor_forward(CausalLM& model, std::span<const Trajectory* const> trajectories, const ActorOptions& options);

// Forward, then loss(output) -> d loss / d log_prob (and d entropy) per token, then backward into the parameters' fp32 gradients.
struct TokenGradients {
  std::vector<double> log_probs;
  std::vector<double> entropy;  // empty: none
};
ActorOutput actor_backward(CausalLM& model, std::span<const Trajectory* const> trajectories, const ActorOptions& options,
                           const std::function<TokenGradients(const ActorOutput&)>& loss);

// Differences between two runs' bits: the parity measures.
struct ParityResult {
  int64_t tokens = 0, rows = 0;  // compared: log-probs, routing rows
  double max_difference = 0;     // of log-probs
  int64_t unequal_tokens = 0, unequal_rows = 0;
  std::string first;  // where: trajectory, position, both values
  bool exact() const { return unequal_tokens == 0 && unequal_rows == 0; }
  void merge(const ParityResult& other);
};
// Compares forwards of these micro-batches with what the rollout recorded.
ParityResult check_parity(CausalLM& model, std::span<const MicroBatch> parts, const ActorOptions& options);
ParityResult check_parity(CausalLM& model, std::span<const Trajectory* const> trajectories, const ActorOptions& options,
                          int64_t max_tokens);

}  // namespace weft
