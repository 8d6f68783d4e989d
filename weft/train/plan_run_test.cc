// A plan's numbers against what a run on thread ranks allocates and counts: the same step, the same meshes.
#include <gtest/gtest.h>

#include <deque>
#include <numeric>

#include "weft/mesh/token_sharing.h"
#include "weft/parallel/tensor_parallel.h"
#include "weft/parallel/test_counting_allocator.h"
#include "weft/train/plan.h"
#include "weft/train/plan_activations.h"
#include "weft/train/plan_kinds.h"
#include "weft/train/plan_memory.h"
#include "weft/train/plan_traffic.h"
#include "weft/train/test_mesh_oracle.h"

namespace weft {
namespace {

using testing::ByteMeter;
using testing::CountBytes;

struct RunOptions {
  std::string model = "moe";
  at::ScalarType dtype = at::kFloat;
  TokenSharing sharing = {};
  bool recompute = false;
  int64_t max_tokens = 20;  // a micro-batch: two and more
};

// What one rank of a run counted.
struct Counted {
  int64_t masters = 0, rounded = 0, gradients = 0, moments = 0;
  std::vector<int64_t> groups, staged;  // gathered bytes of each fully_shard group, the outermost first; while they arrived
  std::map<std::pair<std::string, std::string>, CommBytes> traffic;
  std::vector<MicroBatchRows> rows;
  std::vector<std::vector<std::vector<int64_t>>> experts;  // [micro-batch][MoE layer][expert]: slots of this rank's rows
};

// Meters outlive what they count, which may be freed after its rank has returned.
ByteMeter& new_meter() {
  static std::mutex mutex;
  static std::deque<ByteMeter> meters;
  const std::lock_guard lock(mutex);
  return meters.emplace_back();
}
struct Meter {
  Meter() : bytes(new_meter()) { testing::this_ranks_meter = &bytes; }
  ~Meter() { testing::this_ranks_meter = nullptr; }
  ByteMeter& bytes;
};

std::unique_ptr<CausalLM> model_on(const HfConfig& hf, at::ScalarType dtype, const std::shared_ptr<const RankMesh>& mesh) {
  auto model = std::make_unique<CausalLM>(configure_model(hf), dtype);
  if (mesh->world.size() > 1) parallelize(*model, mesh);
  model->materialize(at::kCPU);
  init_weights(*model, 3);
  return model;
}

MicroBatchRows rows_of(MicroBatch part, const RankMesh& mesh) {
  std::vector<int64_t> offsets{0};
  for (const Trajectory* t : part) offsets.push_back(offsets.back() + t->num_tokens() - 1);
  MicroBatchRows out;
  for (int64_t r = 0; r < mesh.cp.size(); ++r) {
    int64_t fed = 0, head = 0;
    for (const ContextPiece& p : context_pieces(offsets, mesh.cp.size(), r, mesh.sharing.context_split)) {
      const int64_t first = static_cast<int64_t>(part[static_cast<size_t>(p.sequence)]->prompt_ids.size()) - 1;
      fed += p.size();
      head += std::max<int64_t>(0, p.end - std::max(p.begin, first));
    }
    out.fed.push_back(fed), out.head.push_back(head);
  }
  return out;
}

// Slots to each expert, of the rows that this rank's MoE layers work on.
std::vector<std::vector<int64_t>> slots_of(MicroBatch part, const std::vector<RoutingTrace>& traces, const RankMesh& mesh,
                                           const ModelConfig& c) {
  std::vector<int64_t> offsets{0};
  for (const Trajectory* t : part) offsets.push_back(offsets.back() + t->num_tokens() - 1);
  std::vector<std::pair<size_t, int64_t>> fed;
  for (const ContextPiece& p : context_pieces(offsets, mesh.cp.size(), mesh.cp.rank(), mesh.sharing.context_split))
    for (int64_t at = p.begin; at < p.end; ++at) fed.emplace_back(static_cast<size_t>(p.sequence), at);
  const auto [begin, end] = slice_of_rows(static_cast<int64_t>(fed.size()), mesh.tp.size(), mesh.tp.rank());
  std::vector<std::vector<int64_t>> out(c.moe_layer_ids().size(), std::vector<int64_t>(static_cast<size_t>(c.moe.num_experts)));
  for (int64_t i = begin; i < end; ++i)
    for (size_t l = 0; l < out.size(); ++l)
      for (const int32_t e :
           traces[fed[static_cast<size_t>(i)].first].get(fed[static_cast<size_t>(i)].second, static_cast<int64_t>(l)))
        ++out[l][static_cast<size_t>(e)];
  return out;
}

Counted count_rank(const RunOptions& run, const HfConfig& hf, const ParallelDims& dims, Communicator& world) {
  Meter meter;
  const auto mesh = make_rank_mesh(dims, world, run.sharing);
  const auto model = model_on(hf, run.dtype, mesh);
  Counted out;
  for (nn::Parameter* p : model->parameters()) {
    out.masters += static_cast<int64_t>(p->master().nbytes());
    if (p->local_compute().data_ptr() != p->master().data_ptr()) out.rounded += static_cast<int64_t>(p->local_compute().nbytes());
  }
  std::vector<ShardGroup*> groups = shard_groups(*model);
  for (ShardGroup* g : groups) {
    const int64_t before = meter.bytes.live;
    g->unshard(true);
    out.staged.push_back(meter.bytes.live - before);
    g->unshard();
    out.groups.push_back(meter.bytes.live - before);
    g->reshard();
    EXPECT_EQ(meter.bytes.live, before);
  }
  const std::vector<Trajectory> rows = testing::oracle_rows(model->config().vocab_size, 9);
  std::vector<const Trajectory*> list;
  for (const Trajectory& t : rows) list.push_back(&t);
  const DataParallel ranks(mesh);
  Optimizer optimizer(model->parameters(), OptimRecipe{}, 10, [&](std::vector<double>& sums) { ranks.sum_over_shards(sums); });
  for (const auto& slot : optimizer.slots()) out.moments += static_cast<int64_t>(slot.m.nbytes() + slot.v.nbytes());
  const DataParallel::Share share = ranks.share(list, run.max_tokens);
  ActorOptions actor;
  actor.entropy = true;
  for (const MicroBatch part : share.micro_batches) {
    out.rows.push_back(rows_of(part, *mesh));
    if (!model->config().has_moe()) continue;
    std::vector<RoutingTrace> traces;
    actor.record = &traces;
    (void)actor_forward(*model, part, actor);
    out.experts.push_back(slots_of(part, traces, *mesh, model->config()));
  }
  for (ShardGroup* g : groups) g->reshard();  // as after an update: a forward leaves the outermost group gathered
  actor.record = nullptr;
  actor.recompute = run.recompute;
  world.barrier().wait();
  world.stats().clear();
  size_t left = share.micro_batches.size();
  for (const MicroBatch part : share.micro_batches) {
    set_requires_all_reduce(*model, --left == 0);
    (void)actor_backward(*model, part, actor, [](const ActorOutput& o) {
      return TokenGradients{std::vector<double>(o.log_probs.size(), 0.1), std::vector<double>(o.log_probs.size(), 0.01)};
    });
  }
  const double norm = optimizer.grad_norm();
  for (const CommStatsRow& row : world.stats().rows()) {
    CommBytes& to = out.traffic[{row.axis, row.purpose}];
    to.operations += row.bytes.operations, to.sent += row.bytes.sent, to.received += row.bytes.received;
  }
  std::erase_if(out.traffic, [](const auto& e) { return e.second.sent == 0 && e.second.received == 0; });
  for (nn::Parameter* p : model->parameters()) out.gradients += static_cast<int64_t>(p->grad().nbytes());
  optimizer.update(norm);
  return out;
}

std::vector<Counted> count_run(const RunOptions& run, const HfConfig& hf, const ParallelDims& dims) {
  CountBytes counting;
  std::vector<Counted> out(static_cast<size_t>(dims.world()));
  CommOptions comm;
  comm.threads_per_rank = 1;
  run_ranks(static_cast<int>(dims.world()), comm,
            [&](Communicator& world) { out[static_cast<size_t>(world.rank())] = count_rank(run, hf, dims, world); });
  return out;
}

void expect_plan_is_the_run(const std::string& text, const RunOptions& run) {
  SCOPED_TRACE(text + " " + run.model + (run.recompute ? " recompute" : "") +
               (run.sharing.sequence_parallel ? " sequence parallel" : ""));
  const HfConfig hf = HfConfig::parse(testing::oracle_model(run.model), "config.json");
  PlanOptions options;
  options.param_dtype = run.dtype == at::kFloat ? DType::kF32 : DType::kBF16;
  options.recompute = run.recompute;
  options.sequence_parallel = run.sharing.sequence_parallel;
  const Plan plan = make_plan(hf, text, "dp=1", options);
  const ParallelDims& dims = plan.train;
  const std::vector<Counted> counted = count_run(run, hf, dims);

  const WeightKinds kinds = kinds_of(plan.table);
  const std::vector<PlacedKind> placed = place_kinds(plan.table, kinds, dims);
  StepRows rows;
  rows.places.resize(static_cast<size_t>(dims.replicate * dims.fsdp));
  for (size_t r = 0; r < counted.size(); ++r) rows.places[r / static_cast<size_t>(dims.cp * dims.tp)] = counted[r].rows;
  if (plan.table.config.has_moe())
    rows.experts = [&](int64_t rank, int64_t micro_batch, int64_t layer) {
      return counted[static_cast<size_t>(rank)].experts[static_cast<size_t>(micro_batch)][static_cast<size_t>(layer)];
    };
  const TrafficPlan traffic = update_traffic(plan.table, kinds, placed, dims, options, rows);
  for (size_t r = 0; r < counted.size(); ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    const Counted& c = counted[r];
    const int64_t rank = static_cast<int64_t>(r);
    EXPECT_EQ(plan.train_memory.of("weights", rank), c.masters);
    EXPECT_EQ(plan.train_memory.of("rounded_weights", rank), c.rounded);
    EXPECT_EQ(plan.train_memory.of("gradients", rank), c.gradients);
    EXPECT_EQ(plan.train_memory.of("optimizer", rank), c.moments);
    if (dims.world() > 1) {
      ASSERT_EQ(c.groups.size(), kinds.groups.size());
      int64_t pair = 0, staging = 0;
      for (size_t g = 0; g < c.groups.size(); ++g) {
        EXPECT_EQ(gathered_bytes(kinds, placed, g, options.param_dtype)[r], c.groups[g]) << "group " << g;
        if (g > 0) pair = std::max(pair, c.groups[g] + (g + 1 < c.groups.size() ? c.groups[g + 1] : 0));
        staging = std::max(staging, c.staged[g] - c.groups[g]);
      }
      EXPECT_EQ(plan.train_memory.of("gathered_groups", rank), c.groups[0] + pair);
      EXPECT_EQ(plan.train_memory.of("gather_staging", rank), staging);
    }
    std::map<std::pair<std::string, std::string>, CommBytes> planned;
    for (const TrafficRow& row : traffic.rows)
      if (row.sent[r] > 0 || row.received[r] > 0)
        planned[{row.axis, row.purpose}] = {row.operations[r], row.sent[r], row.received[r]};
    for (const auto& [key, bytes] : c.traffic) {
      const CommBytes ours = planned[key];
      EXPECT_EQ(ours.sent, bytes.sent) << key.first << "/" << key.second;
      EXPECT_EQ(ours.received, bytes.received) << key.first << "/" << key.second;
      EXPECT_EQ(ours.operations, bytes.operations) << key.first << "/" << key.second;
    }
    EXPECT_EQ(planned.size(), c.traffic.size());
  }
}

TEST(PlanOfARun, BytesAreTheRuns) {
  for (const char* text : {"fsdp=1", "fsdp=3", "fsdp=4,ep=2", "replicate=2,fsdp=2", "tp=2", "fsdp=2,tp=4,ep=8", "cp=2",
                           "replicate=2,cp=2,tp=2,ep=4", "fsdp=2,cp=2,tp=2,ep=2", "tp=8,ep=4"})
    for (const char* model : {"moe", "dense"}) expect_plan_is_the_run(text, {model});
}

TEST(PlanOfARun, BytesAreTheRunsInEveryMode) {
  const TokenSharing slices{.sequence_parallel = true};
  for (const char* text : {"fsdp=2,tp=2,ep=4", "cp=2,tp=4,ep=2"}) {
    expect_plan_is_the_run(text, {"three_experts", at::kBFloat16});
    expect_plan_is_the_run(text, {"moe", at::kBFloat16, slices});
    expect_plan_is_the_run(text, {"dense", at::kFloat, slices, true});
    expect_plan_is_the_run(text, {"three_experts", at::kBFloat16, {}, true});
  }
}

// A model and rows large enough that activations are most of what is allocated.
std::string wide_model(bool moe) {
  return fmt::format(
      R"({{"model_type": "{}", "architectures": ["{}"], "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4,
      "head_dim": 16, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "tie_word_embeddings": false, "hidden_act": "silu",
      "vocab_size": 96, "intermediate_size": 160, "num_hidden_layers": 4{}}})",
      moe ? "qwen3_moe" : "llama", moe ? "Qwen3MoeForCausalLM" : "LlamaForCausalLM",
      moe ? R"(, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": true)" : "");
}

struct MeasuredActivations {
  int64_t kept = 0, peak = 0;
  std::vector<std::vector<int64_t>> experts;  // [MoE layer][expert]: slots of this rank's rows
};

// Of one backward over one sequence, without what a sharded model gathers and keeps of gradients meanwhile.
std::vector<MeasuredActivations> measure_activations(const HfConfig& hf, const ParallelDims& dims, const RunOptions& run,
                                                     const PlanOptions& options) {
  CountBytes counting;
  std::vector<MeasuredActivations> out(static_cast<size_t>(dims.world()));
  CommOptions comm;
  comm.threads_per_rank = 1;
  run_ranks(static_cast<int>(dims.world()), comm, [&](Communicator& world) {
    Meter meter;
    const auto mesh = make_rank_mesh(dims, world, run.sharing);
    const auto model = model_on(hf, run.dtype, mesh);
    for (nn::Parameter* p : model->parameters()) p->mutable_grad();
    std::vector<Trajectory> rows = testing::oracle_rows(model->config().vocab_size, static_cast<int>(dims.replicate * dims.fsdp));
    for (Trajectory& t : rows) {
      const CounterRng rng(static_cast<uint64_t>(t.dataset_row) + 7);
      t.prompt_ids.resize(static_cast<size_t>(options.max_prompt_length));
      t.response_ids.resize(static_cast<size_t>(options.max_response_length));
      for (size_t i = 0; i < t.prompt_ids.size(); ++i) t.prompt_ids[i] = static_cast<int32_t>(rng.below(i, 90));
      for (size_t i = 0; i < t.response_ids.size(); ++i) t.response_ids[i] = static_cast<int32_t>(rng.below(i + 5000, 90));
      t.rollout_log_probs.assign(t.response_ids.size(), 0);
      t.response_mask.assign(t.response_ids.size(), 1);
    }
    const std::vector<const Trajectory*> mine(static_cast<size_t>(options.sequences()),
                                              &rows[static_cast<size_t>(mesh->data.rank())]);
    ActorOptions actor;
    actor.entropy = true, actor.recompute = run.recompute;
    MeasuredActivations& m = out[static_cast<size_t>(world.rank())];
    if (model->config().has_moe()) {
      std::vector<RoutingTrace> traces;
      actor.record = &traces;
      (void)actor_forward(*model, mine, actor);
      m.experts = slots_of(mine, traces, *mesh, model->config());
      actor.record = nullptr;
    }
    for (ShardGroup* g : shard_groups(*model)) g->reshard();
    for (const bool warm_up : {true, false}) {  // which finds the order of the groups
      if (warm_up && world.size() == 1) continue;
      const int64_t before = meter.bytes.live;
      meter.bytes.restart();
      (void)actor_backward(*model, std::span(mine).first(warm_up ? 1 : mine.size()), actor, [&](const ActorOutput& o) {
        m.kept = meter.bytes.live - before;
        if (world.size() > 1)
          for (nn::Parameter* p : model->parameters())
            if (p->gathered()) m.kept -= static_cast<int64_t>(p->compute().nbytes());
        return TokenGradients{std::vector<double>(o.log_probs.size(), 0.1), std::vector<double>(o.log_probs.size(), 0.01)};
      });
      m.peak = meter.bytes.peak - before;
      EXPECT_EQ(meter.bytes.live, before);
    }
  });
  return out;
}

struct ActivationCase {
  const char* mesh;
  bool moe = false;
  at::ScalarType dtype = at::kFloat;
  bool recompute = false, slices = false;
};

void expect_activations(const ActivationCase& c) {
  SCOPED_TRACE(fmt::format("{} {} {}{}{}", c.mesh, c.moe ? "moe" : "dense", c10::toString(c.dtype),
                           c.recompute ? " recompute" : "", c.slices ? " sequence parallel" : ""));
  const HfConfig hf = HfConfig::parse(wide_model(c.moe), "config.json");
  PlanOptions options;
  options.param_dtype = c.dtype == at::kFloat ? DType::kF32 : DType::kBF16;
  options.recompute = c.recompute, options.sequence_parallel = c.slices;
  options.max_prompt_length = 33, options.max_response_length = 96, options.max_tokens_per_micro_batch = 2048;
  const Plan plan = make_plan(hf, c.mesh, "dp=1", options);
  const ParallelDims& dims = plan.train;
  const auto measured = measure_activations(hf, dims, {"", c.dtype, {.sequence_parallel = c.slices}, c.recompute}, options);
  for (size_t r = 0; r < measured.size(); ++r) {
    const int64_t rank = static_cast<int64_t>(r);
    ActivationSizes sizes = activation_sizes(plan.table, dims, options, even_micro_batch(dims, options), rank);
    const size_t ep = static_cast<size_t>(dims.ep), group = r - r % ep;
    for (size_t l = 0; ep > 1 && l < sizes.received.size(); ++l) {
      sizes.received[l] = 0;  // of what this run's router chose
      for (size_t peer = group; peer < group + ep; ++peer)
        for (size_t e = 8 / ep * (r - group); e < 8 / ep * (r - group + 1); ++e)
          sizes.received[l] += measured[peer].experts[l][e];
    }
    const ActivationBytes ours = activation_bytes(plan.table, options, sizes);
    const auto of = [&](const char* kind) { return plan.train_memory.of(kind, rank); };
    const int64_t rest = dims.world() > 1 ? of("gathered_groups") + of("gather_staging") + of("full_gradients") : 0;
    EXPECT_NEAR(static_cast<double>(ours.kept) / static_cast<double>(measured[r].kept), 1, 0.001) << "rank " << r;
    EXPECT_NEAR(static_cast<double>(ours.peak + rest) / static_cast<double>(measured[r].peak), 1, 0.05) << "rank " << r;
  }
}

TEST(PlanOfARun, ActivationsAreWithinFivePerCent) {
  for (const ActivationCase& c : std::vector<ActivationCase>{{"fsdp=1", true},
                                                             {"fsdp=1", false, at::kBFloat16, true},
                                                             {"fsdp=2,ep=2", true, at::kBFloat16},
                                                             {"fsdp=2,ep=2", true, at::kFloat, true},
                                                             {"tp=2", true, at::kBFloat16, false, true},
                                                             {"tp=2", false, at::kFloat, true, true},
                                                             {"cp=2", true, at::kFloat},
                                                             {"cp=2", true, at::kBFloat16, true},
                                                             {"fsdp=2,tp=2,ep=4", true, at::kBFloat16, true},
                                                             {"fsdp=2,tp=2,ep=4", true, at::kBFloat16, false, true}})
    expect_activations(c);
}

}  // namespace
}  // namespace weft
