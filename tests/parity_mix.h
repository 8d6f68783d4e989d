#pragma once
// For the parity tests: a mix of everything that may differ between rollout and trainer, small models of each kind, and a rollout of
// seeded requests under a mix. Requests depend on the mix's seed and their own id only.

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "weft/base/random.h"
#include "weft/base/threads.h"
#include "weft/kernels/target.h"
#include "weft/rollout/engine.h"
#include "weft/train/actor.h"

namespace weft {

struct Mix {
  int model = 0;  // 0 MoE, 1 dense, 2 Mixtral-like, 3 over-encoded MoE
  bool bf16 = false;
  int64_t chunk = 64, block = 64, companions = 3, n = 2;
  bool reversed = false, one_by_one = false, recompute = false;
  int threads = 1, rollout_threads = 1;
  kernels::Target target = kernels::Target::kPortable;
  double temperature = 1.0, top_p = 1.0, min_p = 0.0;
  int64_t top_k = 0, min_tokens = 0;
  RouterReplayMode replay = RouterReplayMode::kDisabled;
  uint64_t seed = 1;

  std::string text() const {
    return fmt::format("model {} bf16 {} chunk {} block {} companions {} n {} reversed {} one_by_one {} recompute {} threads {}/{} target {} T {} "
                       "top_p {} top_k {} min_p {} min_tokens {} replay {} seed {}",
                       model, bf16, chunk, block, companions, n, reversed, one_by_one, recompute, threads, rollout_threads,
                       kernels::target_name(target), temperature, top_p, top_k, min_p, min_tokens, static_cast<int>(replay), seed);
  }
};

inline ModelConfig small_config(int kind) {
  ModelConfig c;
  c.family = "test";
  c.vocab_size = 97, c.hidden_size = 32, c.intermediate_size = 50;
  c.num_layers = 2, c.num_heads = 4, c.num_kv_heads = 2, c.head_dim = 8;
  c.max_position_embeddings = 256;
  c.qk_norm = kind == 0, c.qkv_bias = kind == 1, c.tied = kind == 1;
  c.moe_layers.assign(2, kind != 1);
  if (kind == 0) c.moe_layers[0] = false;  // a dense layer first: layers are named by global id
  c.moe.num_experts = 5, c.moe.top_k = 2, c.moe.intermediate_size = 24;
  if (kind == 3) c.over_encoding = OverEncodingConfig{3, 2, 3};
  for (int64_t i = 0; i < c.head_dim / 2; ++i) c.inv_freq.push_back(1.0f / static_cast<float>(1 << (2 * i)));
  return c;
}

inline std::unique_ptr<CausalLM> small_model(int kind, bool bf16) {
  auto model = std::make_unique<CausalLM>(small_config(kind), bf16 ? at::kBFloat16 : at::kFloat);
  model->materialize(at::kCPU);
  init_weights(*model, 7);
  for (nn::Parameter* p : model->parameters()) {  // far from uniform
    at::NoGradGuard guard;
    if (p->dim() > 1) p->master().mul_(8.0);
    p->updated();
  }
  return model;
}

struct Threads {
  explicit Threads(int n) { set_num_threads(n); }
  ~Threads() { set_num_threads(0); }
};

inline std::vector<Trajectory> rollout(CausalLM& model, const Mix& mix) {
  const Threads threads(mix.rollout_threads);
  EngineConfig config;
  config.max_num_batched_tokens = mix.chunk;
  config.max_num_seqs = 6;
  config.block_size = mix.block;
  config.kv_cache_tokens = 4096;
  config.end_ids = {2};
  config.record_routing = true;
  Engine engine(model, config, nullptr);
  std::vector<int64_t> order(static_cast<size_t>(mix.companions));
  std::iota(order.begin(), order.end(), 0);
  if (mix.reversed) std::reverse(order.begin(), order.end());
  for (int64_t id : order) {
    GenerationRequest r;
    r.id = id;
    const CounterRng rng(hash_combine(mix.seed, static_cast<uint64_t>(id)));
    const int64_t length = 1 + static_cast<int64_t>(rng.below(999, 70));
    for (int64_t i = 0; i < length; ++i) r.prompt_ids.push_back(static_cast<int32_t>(3 + rng.below(static_cast<uint64_t>(i), 90)));
    r.params.n = mix.n;
    r.params.max_tokens = 6 + id * 5;
    r.params.temperature = mix.temperature;
    r.params.top_p = mix.top_p;
    r.params.top_k = mix.top_k;
    r.params.min_p = mix.min_p;
    r.params.min_tokens = mix.min_tokens;
    r.seed = mix.seed;
    r.dataset_row = id;
    engine.add(std::move(r));
  }
  std::vector<Trajectory> out;
  while (engine.step()) {
    engine.check_integrity();
    for (GeneratedSample& s : engine.take_finished()) out.push_back(std::move(s.trajectory));
  }
  return out;
}

// Counts what the trainer computes differently from the rollout: in a forward pass, then in an update's own, which has a graph and may
// recompute and replay.
inline ParityResult train_and_compare(CausalLM& model, const std::vector<Trajectory>& trajectories, const Mix& mix) {
  const Threads threads(mix.threads);
  std::vector<const Trajectory*> refs;
  for (const Trajectory& t : trajectories) refs.push_back(&t);
  ActorOptions options;
  options.recompute = mix.recompute;
  const int64_t budget = mix.one_by_one ? 1 : 1000;
  ParityResult live = check_parity(model, refs, options, budget);

  std::vector<Trajectory> replayed = trajectories;
  if (mix.replay == RouterReplayMode::kR2 && model.config().has_moe()) {
    ActorOptions record = options;
    std::vector<RoutingTrace> traces;
    record.record = &traces;
    actor_forward(model, refs, record);
    for (size_t i = 0; i < traces.size(); ++i) replayed[i].routing = traces[i];
  }
  refs.clear();
  for (const Trajectory& t : replayed) refs.push_back(&t);
  options.replay = mix.replay != RouterReplayMode::kDisabled && model.config().has_moe();
  for (const MicroBatch part : split_micro_batches(refs, budget)) {
    const ActorOutput out = actor_backward(model, part, options, [](const ActorOutput& o) {
      return TokenGradients{std::vector<double>(o.log_probs.size(), 0.01), {}};
    });
    size_t token = 0;
    for (const Trajectory* t : part)
      for (float theirs : t->rollout_log_probs) {
        ++live.tokens;
        if (std::bit_cast<uint32_t>(out.log_probs[token++]) != std::bit_cast<uint32_t>(theirs)) ++live.unequal_tokens;
      }
  }
  return live;
}

}  // namespace weft
