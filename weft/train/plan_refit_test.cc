// A plan's refit and its rollout's weights against RolloutRole on thread ranks: what refits count, and what a rank keeps.
#include <gtest/gtest.h>

#include "weft/base/random.h"
#include "weft/comm/launch.h"
#include "weft/model/parallelize.h"
#include "weft/train/plan.h"
#include "weft/train/rollout_role.h"
#include "weft/train/test_refit_pairs.h"

namespace weft {
namespace {

struct RefitCase {
  const char *train, *rollout;
  bool apart;
  const char* model;
  at::ScalarType actor_dtype, rollout_dtype;
};

// A rank of the job, as it counted.
struct CountedRefit {
  int64_t sent = 0, received = 0;
  int64_t kept = 0, scales = 0, shared = 0, panels = 0;  // of the rollout's weights; those in the actor's memory
};

DType planned(at::ScalarType t) { return t == at::kFloat ? DType::kF32 : t == at::kChar ? DType::kI8 : DType::kBF16; }

RolePlaces places_of(const Plan& plan) {
  RolePlaces p;
  p.world = static_cast<int>(plan.job_ranks());
  p.actor = {plan.train, weft::testing::ranks_from(0, plan.train.world())};
  p.rollout = {plan.rollout, weft::testing::ranks_from(static_cast<int>(plan.rollout_rank(0)), plan.rollout.world())};
  p.reference = p.critic = p.reward_model = p.actor;
  return p;
}

std::vector<CountedRefit> count_refit(const RefitCase& c, const RolePlaces& places) {
  const ModelConfig config = weft::testing::config_of(c.model);
  std::vector<CountedRefit> out(static_cast<size_t>(places.world));
  Recipe recipe;
  recipe.rollout.dtype = dtype_name(planned(c.rollout_dtype));
  CommOptions comm;
  comm.threads_per_rank = 1;
  run_ranks(places.world, comm, [&](Communicator& world) {
    const Roles roles = make_roles(places, world);
    std::unique_ptr<CausalLM> actor;
    if (roles.actor) {
      actor = std::make_unique<CausalLM>(config, c.actor_dtype);
      parallelize(*actor, roles.actor);
      actor->materialize(at::kCPU);
      init_weights(*actor, 5);
    }
    CausalLM* model = nullptr;
    RolloutRole rollout(recipe, config, c.actor_dtype, actor.get(), roles, [&](CausalLM& m) {
      model = &m;
      return std::make_unique<Engine>(m, EngineConfig{.max_num_seqs = 4, .kv_cache_tokens = 128}, nullptr);
    });
    CountedRefit& mine = out[static_cast<size_t>(world.rank())];
    rollout.actor_changes();
    world.stats().clear();
    const RefitReport report = rollout.refit(1);
    for (const CommStatsRow& row : world.stats().rows())
      if (row.purpose == "refit") mine.sent += row.bytes.sent, mine.received += row.bytes.received;
    EXPECT_EQ(report.sent, mine.sent);
    if (!model) return;
    at::NoGradGuard guard;
    GenerationRequest request;  // its products build the panels
    for (int32_t i = 0; i < 40; ++i) request.prompt_ids.push_back(i);
    request.params.max_tokens = 2;
    rollout.engine()->add(request);
    while (rollout.engine()->step()) {
    }
    for (nn::Parameter* p : model->parameters()) {
      const int64_t bytes = static_cast<int64_t>(p->compute().nbytes());
      const nn::Parameter* trained = actor ? actor->find_parameter(p->name()) : nullptr;
      mine.kept += bytes;
      if (p->row_scales().defined()) mine.scales += static_cast<int64_t>(p->row_scales().nbytes());
      if (trained && bytes > 0 && trained->local_compute().data_ptr() == p->compute().data_ptr()) mine.shared += bytes;
      mine.panels += p->packed_bytes();
    }
  });
  return out;
}

TEST(PlanOfARefit, BytesAreTheRuns) {
  const at::ScalarType f32 = at::kFloat, bf16 = at::kBFloat16;
  const RefitCase cases[] = {
      {"fsdp=2", "dp=1,tp=2", false, "dense", f32, bf16},
      {"replicate=2", "dp=2", false, "moe", f32, f32},  // nothing moves: a rank reads what it trains
      {"replicate=2", "dp=2", false, "moe", f32, bf16},
      {"fsdp=4,ep=2", "dp=2,tp=2,ep=4", false, "moe", bf16, bf16},
      {"tp=4", "dp=1,tp=4,ep=1", false, "dense", bf16, bf16},
      {"fsdp=2,tp=2,ep=4", "dp=2,tp=2,ep=4", false, "over_encoded", bf16, bf16},
      {"replicate=2,cp=2,tp=2,ep=4", "dp=8,ep=8", false, "moe", f32, bf16},
      {"fsdp=3,ep=3", "dp=2,tp=2,ep=4", true, "three_experts", f32, bf16},
      {"fsdp=2", "dp=4,ep=4", true, "moe", bf16, bf16},
      {"replicate=2,fsdp=2", "dp=1,tp=4,ep=2", true, "over_encoded", f32, f32},
      {"tp=2,ep=2", "dp=1", true, "moe", f32, bf16},
      {"fsdp=1", "dp=3,ep=3", true, "three_experts", bf16, f32},
      {"fsdp=4,ep=2", "dp=2,tp=2,ep=4", false, "moe", bf16, at::kChar},
      {"replicate=2", "dp=2", false, "moe", f32, at::kChar},  // what is not int8 is the trainer's own
      {"fsdp=2", "dp=1,tp=2", true, "dense", bf16, at::kChar},
  };
  int64_t shared = 0;
  for (const RefitCase& c : cases) {
    SCOPED_TRACE(fmt::format("{} -> {}{} {}", c.train, c.rollout, c.apart ? " apart" : "", c.model));
    PlanOptions options;
    options.param_dtype = planned(c.actor_dtype), options.rollout_dtype = planned(c.rollout_dtype), options.apart = c.apart;
    const Plan plan =
        make_plan(HfConfig::parse(weft::testing::oracle_model(c.model), "config.json"), c.train, c.rollout, options);
    ASSERT_TRUE(plan.refit.listed);
    const RolePlaces places = places_of(plan);
    const std::vector<CountedRefit> counted = count_refit(c, places);
    const auto of = [](const std::map<int64_t, int64_t>& bytes, int64_t rank) {
      const auto at = bytes.find(rank);
      return at == bytes.end() ? 0 : at->second;
    };
    for (int64_t r = 0; r < plan.job_ranks(); ++r) {
      SCOPED_TRACE("rank " + std::to_string(r));
      const CountedRefit& mine = counted[static_cast<size_t>(r)];
      EXPECT_EQ(of(plan.refit.load.received, r), mine.received);
      EXPECT_EQ(of(plan.refit.load.sent, r), mine.sent);
      EXPECT_EQ(of(plan.refit.load.needed, r), mine.kept);
      EXPECT_EQ(c.apart ? 0 : plan.shared_weights[static_cast<size_t>(r)], mine.shared);
      shared += mine.shared;
      if (r < plan.rollout_rank(0)) continue;
      EXPECT_EQ(plan.rollout_memory.of("weights", r - plan.rollout_rank(0)), mine.kept + mine.scales);
      EXPECT_EQ(plan.rollout_memory.of("packed_panels", r - plan.rollout_rank(0)), mine.panels);
    }
  }
  EXPECT_GT(shared, 0);
}

// The planner is asked for the same tensors from a table as from a model.
TEST(PlanOfARefit, ItsTensorsAreTheRuns) {
  for (const char* model : {"dense", "moe", "over_encoded"})
    for (const bool apart : {false, true}) {
      const bool int8 = apart;
      PlanOptions options;
      options.apart = apart;
      const Plan plan = make_plan(HfConfig::parse(weft::testing::oracle_model(model), "config.json"), "fsdp=2,tp=2,ep=4",
                                  "dp=2,tp=2,ep=2", options);
      const std::vector<RefitTensor> ours = planned_refit_tensors(plan.table, plan.train, plan.rollout,
                                                                  int8 ? DType::kI8 : DType::kBF16, apart, false, DType::kBF16)
                                                .tensors,
                                     runs = refit_tensors(weft::testing::config_of(model), at::kBFloat16, places_of(plan), false,
                                                          {}, int8);
      ASSERT_EQ(ours.size(), runs.size());
      const auto same = [](const std::vector<HolderSet>& a, const std::vector<HolderSet>& b) {
        return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                          [](const HolderSet& x, const HolderSet& y) { return x.ranks == y.ranks && x.boxes == y.boxes; });
      };
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_EQ(ours[i].name, runs[i].name);
        EXPECT_EQ(ours[i].shape, runs[i].shape) << ours[i].name;
        EXPECT_EQ(ours[i].dtype, runs[i].dtype) << ours[i].name;
        EXPECT_TRUE(same(ours[i].from, runs[i].from) && same(ours[i].to, runs[i].to)) << ours[i].name;
      }
    }
}

}  // namespace
}  // namespace weft
