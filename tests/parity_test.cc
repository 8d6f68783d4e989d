// Trainer and rollout agree bit for bit: log-probs and routes, whatever the batch companions, chunk sizes, cache blocks, packing,
// recompute, threads, SIMD target, sampling and replay. Mixes are drawn from seeds; `make test-all` runs the whole product.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>

#include "weft/base/random.h"
#include "weft/base/threads.h"
#include "weft/kernels/target.h"
#include "weft/rollout/engine.h"
#include "weft/train/actor.h"

namespace weft {
namespace {

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

ModelConfig small_config(int kind) {
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

std::unique_ptr<CausalLM> small_model(int kind, bool bf16) {
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

std::vector<Trajectory> rollout(CausalLM& model, const Mix& mix) {
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

ParityResult compare(const Mix& mix) {
  kernels::force_target(mix.target);
  auto model = small_model(mix.model, mix.bf16);
  const std::vector<Trajectory> trajectories = rollout(*model, mix);
  const Threads threads(mix.threads);
  std::vector<const Trajectory*> refs;
  for (const Trajectory& t : trajectories) refs.push_back(&t);
  ActorOptions options;
  options.recompute = mix.recompute;
  const int64_t budget = mix.one_by_one ? 1 : 1000;
  ParityResult live = check_parity(*model, refs, options, budget);

  // The update's own forward, with its graph, recompute and replay.
  std::vector<Trajectory> replayed = trajectories;
  if (mix.replay == RouterReplayMode::kR2 && model->config().has_moe()) {
    ActorOptions record = options;
    std::vector<RoutingTrace> traces;
    record.record = &traces;
    actor_forward(*model, refs, record);
    for (size_t i = 0; i < traces.size(); ++i) replayed[i].routing = traces[i];
  }
  refs.clear();
  for (const Trajectory& t : replayed) refs.push_back(&t);
  options.replay = mix.replay != RouterReplayMode::kDisabled && model->config().has_moe();
  for (const MicroBatchSpan& span : split_micro_batches(refs, budget)) {
    const std::span<const Trajectory* const> part(refs.data() + span.begin, static_cast<size_t>(span.end - span.begin));
    const ActorOutput out = actor_backward(*model, part, options, [](const ActorOutput& o) {
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

void expect_parity(const Mix& mix) {
  const ParityResult r = compare(mix);
  EXPECT_TRUE(r.exact()) << mix.text() << ": " << r.unequal_tokens << " of " << r.tokens << " log-probs, " << r.unequal_rows << " of " << r.rows
                         << " routes; " << r.first;
  EXPECT_EQ(r.max_difference, 0.0) << mix.text();
  EXPECT_GT(r.tokens, 4) << mix.text();
  if (mix.model != 1) {
    EXPECT_GT(r.rows, 4) << mix.text();
  }
}

template <class T>
T pick(const CounterRng& rng, uint64_t& counter, std::initializer_list<T> values) {
  return *(values.begin() + rng.below(counter++, values.size()));
}

Mix random_mix(uint64_t seed) {
  const CounterRng rng(seed);
  uint64_t c = 0;
  Mix m;
  m.model = pick(rng, c, {0, 1, 2, 3});
  m.bf16 = pick(rng, c, {false, true});
  m.chunk = pick<int64_t>(rng, c, {7, 16, 33, 64, 300});
  m.block = pick<int64_t>(rng, c, {16, 32, 64});
  m.companions = pick<int64_t>(rng, c, {1, 3, 5});
  m.n = pick<int64_t>(rng, c, {1, 2, 4});
  m.reversed = pick(rng, c, {false, true});
  m.one_by_one = pick(rng, c, {false, true});
  m.recompute = pick(rng, c, {false, true});
  m.threads = pick(rng, c, {1, 2, 4});
  m.rollout_threads = pick(rng, c, {1, 2, 4});
  const auto targets = kernels::available_targets();
  m.target = targets[rng.below(c++, targets.size())];
  m.temperature = pick(rng, c, {1.0, 0.6});
  m.top_p = pick(rng, c, {1.0, 0.8});
  m.top_k = pick<int64_t>(rng, c, {0, 10});
  m.min_p = pick(rng, c, {0.0, 0.05});
  m.min_tokens = pick<int64_t>(rng, c, {0, 4});
  m.replay = pick(rng, c, {RouterReplayMode::kDisabled, RouterReplayMode::kR2, RouterReplayMode::kR3});
  m.seed = seed;
  return m;
}

class RestoreTarget : public testing::Test {
 protected:
  void TearDown() override { kernels::force_target(kernels::available_targets().back()); }
};
using Parity = RestoreTarget;

TEST_F(Parity, HoldsForSeededRandomMixes) {
  for (uint64_t seed = 1; seed <= 20; ++seed) expect_parity(random_mix(seed));
}

// Every value of every axis, against a base mix, in both precisions.
TEST_F(Parity, HoldsForEachAxisAlone) {
  for (bool bf16 : {false, true}) {
    Mix base;
    base.bf16 = bf16;
    base.target = kernels::available_targets().back();
    for (int model : {0, 1, 2, 3}) { Mix m = base; m.model = model; expect_parity(m); }
    for (kernels::Target t : kernels::available_targets()) { Mix m = base; m.target = t; expect_parity(m); }
    for (int64_t chunk : {5, 40}) { Mix m = base; m.chunk = chunk; m.companions = 4; expect_parity(m); }
    for (RouterReplayMode r : {RouterReplayMode::kR2, RouterReplayMode::kR3}) { Mix m = base; m.replay = r; m.recompute = true; expect_parity(m); }
    { Mix m = base; m.threads = 2; m.rollout_threads = 4; expect_parity(m); }
    { Mix m = base; m.one_by_one = true; m.temperature = 0.6; m.top_p = 0.7; m.min_tokens = 3; expect_parity(m); }
  }
}

// The measure itself: a trainer that is given another temperature, or a model that is off by one bit of one weight, is caught.
TEST_F(Parity, FailsWhenSomethingIsOff) {
  Mix mix;
  mix.target = kernels::available_targets().back();
  auto model = small_model(0, false);
  std::vector<Trajectory> trajectories = rollout(*model, mix);
  std::vector<const Trajectory*> refs;
  for (const Trajectory& t : trajectories) refs.push_back(&t);
  ASSERT_TRUE(check_parity(*model, refs, {}, 1000).exact());
  trajectories[0].temperature = 1.001;
  EXPECT_FALSE(check_parity(*model, refs, {}, 1000).exact());
  trajectories[0].temperature = 1.0;
  nn::Parameter* p = model->find_parameter("model.layers.1.mlp.experts.down_proj");
  float* w = p->master().data_ptr<float>();
  for (int64_t i = 0; i < p->numel(); ++i) w[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(w[i]) ^ 1u);
  p->updated();
  EXPECT_FALSE(check_parity(*model, refs, {}, 1000).exact());
}

}  // namespace
}  // namespace weft
