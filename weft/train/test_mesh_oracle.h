#pragma once
// One rank is the oracle of every mesh, at the level of the trainer's forward, backward and update: log-probs bit for bit,
// gradients and parameters up to the order of sums (docs/sharding.md).

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "weft/base/random.h"
#include "weft/comm/launch.h"
#include "weft/model/families.h"
#include "weft/model/parallelize.h"
#include "weft/parallel/distributed_tensor.h"
#include "weft/parallel/fully_shard.h"
#include "weft/parallel/gradient_norm.h"
#include "weft/train/actor.h"
#include "weft/train/data_parallel.h"
#include "weft/train/optimizer.h"

namespace weft::testing {

// Shapes with 8 query heads, so that tp may be 1, 2, 4 and 8; sizes that eighths do not divide.
inline std::string oracle_model(const std::string& kind) {
  const std::string common =
      R"("hidden_size": 32, "num_attention_heads": 8, "head_dim": 6, "rms_norm_eps": 1e-6, "max_position_embeddings": 256,
      "tie_word_embeddings": false, "hidden_act": "silu", "rope_theta": 1000.0, )";
  const auto moe = [&](int experts, const std::string& more) {
    return fmt::format(
        R"({{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], {} "vocab_size": 53, "num_key_value_heads": 2,
      "intermediate_size": 50, "num_hidden_layers": 3, "attention_bias": false, "num_experts": {}, "num_experts_per_tok": 2,
      "moe_intermediate_size": 12, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [1]{}}})",
        common, experts, more);
  };
  if (kind == "moe") return moe(8, "");
  if (kind == "three_experts") return moe(3, "");
  if (kind == "many_experts") return moe(300, "");
  if (kind == "over_encoded")
    return moe(8, R"(, "over_encoding": {"ngram_vocab_size_ratio": 3, "emb_neighbor_num": 3, "emb_split_num": 2})");
  return R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], )" + common +
         R"("vocab_size": 97, "num_key_value_heads": 4,
      "intermediate_size": 50, "num_hidden_layers": 5, "attention_bias": true, "mlp_bias": true})";
}

// 5 sequences of uneven lengths, some of one response token.
inline std::vector<Trajectory> oracle_rows(int64_t vocab, int count = 5) {
  std::vector<Trajectory> rows;
  for (int i = 0; i < count; ++i) {
    Trajectory t;
    t.dataset_row = i;
    const CounterRng rng(static_cast<uint64_t>(i) + 40);
    const int64_t prompt = 1 + i * 5 % 7, response = 1 + i * 11 % 9;
    for (int64_t j = 0; j < prompt + response; ++j)
      (j < prompt ? t.prompt_ids : t.response_ids)
          .push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(j), static_cast<uint64_t>(vocab))));
    t.temperature = i % 2 ? 0.7 : 1.0;
    t.rollout_log_probs.resize(t.response_ids.size());
    t.response_mask.assign(t.response_ids.size(), 1);
    t.finish_reason = "length";
    rows.push_back(std::move(t));
  }
  return rows;
}

struct OracleStep {
  std::vector<float> log_probs, entropy;
  std::map<std::string, at::Tensor> grads;
  double norm = 0;
};
struct OracleRun {
  std::vector<OracleStep> steps;
  std::map<std::string, at::Tensor> parameters;
  std::vector<std::vector<RoutingTrace>> traces;  // by step, of one rank
};

struct OracleOptions {
  std::string model = "moe";
  at::ScalarType dtype = at::kFloat;
  int steps = 1;
  int64_t max_tokens = 20;  // a micro-batch: two and more
  bool recompute = false;
  TokenSharing sharing = {};
  std::vector<std::string> plan = {};
  std::function<void(CausalLM&)> after_backward = {};
};

// `mesh` null: one rank. `traces` are replayed where given, so that later steps take the same routes whatever the last bits.
inline OracleRun run_oracle(const OracleOptions& options, const std::shared_ptr<const RankMesh>& mesh, const OracleRun* replay) {
  CausalLM model(configure_model(HfConfig::parse(oracle_model(options.model), "config.json")), options.dtype);
  if (mesh) parallelize(model, mesh, options.plan);
  model.materialize(at::kCPU);
  init_weights(model, 3);
  {
    at::NoGradGuard guard;
    for (nn::Parameter* p : model.parameters()) {
      if (p->dim() > 1) p->master().mul_(8.0);
      p->updated();
    }
  }
  const auto whole = [&](const nn::Parameter& p, const at::Tensor& local) {
    return mesh ? DistributedTensor::from_local(local, layout_of(p, *mesh), mesh).full_tensor().clone() : local.clone();
  };
  std::vector<Trajectory> rows = oracle_rows(model.config().vocab_size);
  std::vector<const Trajectory*> list;
  for (const Trajectory& t : rows) list.push_back(&t);
  const DataParallel ranks(mesh);
  OptimRecipe optim;
  optim.lr = 1e-4;
  Optimizer optimizer(model.parameters(), optim, 1000, [&](std::vector<double>& sums) { ranks.sum_over_shards(sums); });

  OracleRun out;
  for (int step = 0; step < options.steps; ++step) {
    ActorOptions actor;
    actor.recompute = options.recompute;
    actor.entropy = true;
    const bool moe = model.config().has_moe();
    if (moe && replay) {
      for (size_t i = 0; i < rows.size(); ++i) rows[i].routing = replay->traces[static_cast<size_t>(step)][i];
      actor.replay = true;
    }
    std::vector<RoutingTrace> traces;
    if (moe && !replay) actor.record = &traces;
    const DataParallel::Share share = ranks.share(list, options.max_tokens);
    OracleStep result;
    size_t left = share.micro_batches.size(), row = share.begin[share.mine];
    for (const MicroBatch part : share.micro_batches) {
      set_requires_all_reduce(model, --left == 0);
      const ActorOutput o = actor_backward(model, part, actor, [&](const ActorOutput& a) {
        // Of the token's place in the whole batch, not in the micro-batch.
        TokenGradients g{std::vector<double>(a.log_probs.size()), std::vector<double>(a.log_probs.size())};
        for (size_t i = 0; i < part.size(); ++i)
          for (int64_t t = a.offsets[i]; t < a.offsets[i + 1]; ++t) {
            g.log_probs[static_cast<size_t>(t)] =
                -0.1 * static_cast<double>(1 + (row + i + static_cast<size_t>(t - a.offsets[i])) % 3);
            g.entropy[static_cast<size_t>(t)] = -0.01;
          }
        return g;
      });
      row += part.size();
      result.log_probs.insert(result.log_probs.end(), o.log_probs.begin(), o.log_probs.end());
      result.entropy.insert(result.entropy.end(), o.entropy.begin(), o.entropy.end());
    }
    result.log_probs = ranks.gather_tokens(share, list, result.log_probs);
    result.entropy = ranks.gather_tokens(share, list, result.entropy);
    for (nn::Parameter* p : model.parameters()) result.grads[p->name()] = whole(*p, p->mutable_grad());
    if (options.after_backward) options.after_backward(model);
    result.norm = optimizer.grad_norm();
    if (mesh) {
      EXPECT_NEAR(gradient_norm(model.parameters(), 2, *mesh), result.norm, 1e-9 * result.norm);
    }
    optimizer.update(result.norm);
    out.steps.push_back(std::move(result));
    out.traces.push_back(std::move(traces));
  }
  for (nn::Parameter* p : model.parameters()) out.parameters[p->name()] = whole(*p, p->master());
  return out;
}

// Of each gradient: the largest difference, over the tensor's largest entry or a thousandth of the largest of all.
inline void expect_gradients_close(const OracleStep& ours, const OracleStep& one, double tolerance) {
  double largest = 0;
  for (const auto& [name, g] : one.grads) largest = std::max(largest, g.abs().max().item<double>());
  for (const auto& [name, g] : one.grads) {
    const double entry = std::max(g.abs().max().item<double>(), 1e-3 * largest);
    EXPECT_LE((ours.grads.at(name) - g).abs().max().item<double>() / entry, tolerance) << name;
  }
}

// In fp32 4e-6, for sums of other orders. In bf16 activation gradients are rounded where one rank rounds them, so that splits and
// meshes differ by the order of fp32 sums as well (5e-7 measured between two splits), except with tp: there each rank rounds its
// term of a column-parallel input's gradient (1.3e-2 measured).
inline double gradient_tolerance(at::ScalarType dtype, bool tp) { return dtype == at::kFloat ? 4e-6 : tp ? 2.6e-2 : 1e-6; }

inline void expect_mesh_equals_one_rank(const std::string& text, const OracleOptions& options, const OracleRun& one) {
  SCOPED_TRACE(text + " " + options.model);
  const ParallelDims dims = parse_parallel_dims(text, 0, {"oe"});
  CommOptions comm;
  comm.threads_per_rank = 1;
  run_ranks(static_cast<int>(dims.world()), comm, [&](Communicator& world) {
    const auto mesh = make_rank_mesh(dims, world, options.sharing);
    const OracleRun ours = run_oracle(options, mesh, &one);
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const OracleStep &a = ours.steps[0], &b = one.steps[0];
    EXPECT_TRUE(a.log_probs == b.log_probs) << "rank " << world.rank();
    EXPECT_TRUE(a.entropy == b.entropy) << "rank " << world.rank();
    expect_gradients_close(a, b, gradient_tolerance(options.dtype, dims.tp > 1));
    EXPECT_NEAR(a.norm, b.norm, gradient_tolerance(options.dtype, dims.tp > 1) * b.norm);
    if (options.steps == 1) return;
    // Adam turns a gradient near zero of another sign into a step of the rate: at most 2 x 3 x 1e-4.
    for (const auto& [name, p] : one.parameters) {
      const at::Tensor difference = (ours.parameters.at(name) - p).abs();
      EXPECT_LE(difference.max().item<double>(), 6e-4) << name;
      EXPECT_LE((difference > 1e-5).sum().item<int64_t>(), std::max<int64_t>(1, p.numel() / 10000)) << name;
    }
  });
}

// Meshes of this many ranks: every (replicate, fsdp, cp, tp) with tp 1, 2, 4 or 8 and every ep that divides fsdp * cp * tp; or
// (replicate, fsdp) alone.
inline std::vector<std::string> all_meshes(int64_t world, bool every_axis) {
  std::vector<std::string> out;
  for (int64_t replicate = 1; replicate <= world; ++replicate)
    for (int64_t cp = 1; cp <= (every_axis ? world : 1); ++cp)
      for (const int64_t tp : {1, 2, 4, 8}) {
        if (world % (replicate * cp * tp) != 0 || (tp > 1 && !every_axis)) continue;
        const int64_t replica = world / replicate;
        for (int64_t ep = 1; ep <= (every_axis ? replica : 1); ++ep)
          if (replica % ep == 0)
            out.push_back(fmt::format("replicate={},fsdp={},cp={},tp={},ep={}", replicate, replica / cp / tp, cp, tp, ep));
      }
  return out;
}

}  // namespace weft::testing
