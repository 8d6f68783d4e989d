// Training and rollout rates of a whole model: a random 115 M-parameter Qwen3-MoE (8 layers, hidden 512, 32 experts, top 4, vocabulary
// 8192), the shape that bench/peers.py gives to PyTorch and llama.cpp. Prints JSON, one figure a line.
//
// model_bench [--threads N] [--dtype float32|bfloat16] [--only train|decode] [--steps N] [--length TOKENS] [--mesh fsdp=2] [--sequence-parallel true]
// --mesh trains on thread ranks (or those of mpirun), which share the threads and the rows.

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "weft/base/random.h"
#include "weft/base/threads.h"
#include "weft/comm/launch.h"
#include "weft/kernels/target.h"
#include "weft/model/parallelize.h"
#include "weft/nn/block_allocator.h"
#include "weft/rollout/engine.h"
#include "weft/train/actor.h"
#include "weft/train/data_parallel.h"
#include "weft/train/optimizer.h"

namespace weft {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

ModelConfig config() {
  ModelConfig c;
  c.family = "qwen3_moe";
  c.vocab_size = 8192, c.hidden_size = 512, c.intermediate_size = 1024;
  c.num_layers = 8, c.num_heads = 8, c.num_kv_heads = 4, c.head_dim = 64;
  c.max_position_embeddings = 4096;
  c.qk_norm = true;
  c.moe_layers.assign(8, true);
  c.moe.num_experts = 32, c.moe.top_k = 4, c.moe.intermediate_size = 256;
  for (int i = 0; i < 32; ++i) c.inv_freq.push_back(static_cast<float>(std::pow(10000.0, -i / 32.0)));
  return c;
}

std::vector<int32_t> tokens(uint64_t seed, int64_t n) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(3 + CounterRng(seed).below(static_cast<uint64_t>(i), 8189)));
  return ids;
}

void train(CausalLM& model, const char* dtype, int steps, int64_t length, std::shared_ptr<const RankMesh> mesh) {
  constexpr int64_t kBatch = 4;
  const DataParallel ranks(mesh);
  OptimRecipe optim;
  optim.lr = 1e-4;
  Optimizer optimizer(model.parameters(), optim, 1000, [&](std::vector<double>& v) { ranks.sum_over_shards(v); });
  std::vector<Trajectory> rows(kBatch);
  std::vector<const Trajectory*> refs;
  for (int64_t b = 0; b < kBatch; ++b) {
    const auto ids = tokens(static_cast<uint64_t>(b), length);
    rows[static_cast<size_t>(b)].prompt_ids = {ids[0]};
    rows[static_cast<size_t>(b)].response_ids.assign(ids.begin() + 1, ids.end());
    refs.push_back(&rows[static_cast<size_t>(b)]);
  }
  const MicroBatch mine = ranks.share(refs, kBatch * length).micro_batches.at(0);
  std::vector<double> seconds, forward;
  for (int s = 0; s < steps + 1; ++s) {
    ranks.any(false);  // together
    const double start = now();
    double middle = 0;
    actor_backward(model, mine, {}, [&](const ActorOutput& o) {
      middle = now();
      return TokenGradients{std::vector<double>(o.log_probs.size(), -1.0 / static_cast<double>(kBatch * (length - 1))), {}};
    });
    const double backward = now();
    optimizer.update(optimizer.grad_norm());
    if (s == 0) continue;
    seconds.push_back(now() - start);
    forward.push_back(middle - start);
    if (ranks.main()) std::fprintf(stderr, "step %d: forward %.2f s, backward %.2f s, update %.2f s\n", s, middle - start, backward - middle, now() - backward);
  }
  if (!ranks.main()) return;
  std::sort(seconds.begin(), seconds.end());
  std::printf("{\"what\": \"train\", \"dtype\": \"%s\", \"ranks\": %d, \"threads_per_rank\": %d, \"tokens_per_s\": %.1f, \"step_s\": %.3f}\n", dtype, ranks.size(), num_threads(),
              static_cast<double>(kBatch * length) / seconds[seconds.size() / 2], seconds[seconds.size() / 2]);
}

void decode(CausalLM& model, const char* dtype) {
  constexpr int64_t kPrompt = 64, kNew = 128;
  for (int64_t batch : {1, 8, 32}) {
    EngineConfig c;
    c.max_num_seqs = batch;
    c.kv_cache_tokens = batch * 256;
    Engine engine(model, c, nullptr);
    for (int64_t i = 0; i < batch; ++i) {
      GenerationRequest r;
      r.id = i;
      r.prompt_ids = tokens(static_cast<uint64_t>(100 + i), kPrompt);
      r.params.temperature = 0.0;
      r.params.max_tokens = kNew;
      r.params.ignore_eos = true;
      engine.add(std::move(r));
    }
    while (engine.tokens_generated() < batch) engine.step();
    const double start = now();
    const int64_t before = engine.tokens_generated();
    while (engine.step()) {}
    std::printf("{\"what\": \"decode\", \"dtype\": \"%s\", \"threads\": %d, \"batch\": %ld, \"tokens_per_s\": %.1f}\n", dtype, num_threads(), batch,
                static_cast<double>(engine.tokens_generated() - before) / (now() - start));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  int threads = 0, steps = 3, length = 512;
  std::string dtype = "float32", only, mesh;
  weft::TokenSharing sharing;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--threads") threads = std::stoi(value);
    else if (name == "--steps") steps = std::stoi(value);
    else if (name == "--length") length = std::stoi(value);
    else if (name == "--dtype") dtype = value;
    else if (name == "--mesh") mesh = value;
    else if (name == "--sequence-parallel") sharing.sequence_parallel = value == "true";
    else if (name == "--only") only = value;
    else return std::fprintf(stderr, "unknown option %s\n", argv[i]), 2;
  }
  weft::set_denormals_flushed();
  weft::set_num_threads(threads);
  if (!std::getenv("WEFT_BENCH_MALLOC")) weft::nn::use_block_cache_for_tensors();
  at::set_num_threads(1);
  const auto run = [&](std::shared_ptr<const weft::RankMesh> ranks) {
    weft::CausalLM model(weft::config(), dtype == "float32" ? at::kFloat : at::kBFloat16);
    if (ranks) weft::parallelize(model, ranks);
    model.materialize(at::kCPU);
    weft::init_weights(model, 1);
    if (only != "train") weft::decode(model, dtype.c_str());
    if (only != "decode") weft::train(model, dtype.c_str(), steps, length, ranks);
  };
  if (mesh.empty()) {
    run(nullptr);
    return 0;
  }
  const weft::ParallelDims dims = weft::parse_parallel_dims(mesh, 0);
  only = "train";
  weft::CommOptions options;
  options.threads_per_rank = threads > 0 ? std::max<int>(1, threads / static_cast<int>(dims.world())) : 0;
  weft::run_ranks(static_cast<int>(dims.world()), options, [&](weft::Communicator& world) { run(weft::make_rank_mesh(dims, world, sharing)); });
}
