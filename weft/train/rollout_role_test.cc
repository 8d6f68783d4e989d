// Refits of a rollout that fail: what it has afterwards, and that the next one repairs it.
#include "weft/train/rollout_role.h"

#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/comm/launch.h"
#include "weft/model/parallelize.h"
#include "weft/train/test_mesh_oracle.h"

namespace weft {
namespace {

struct Seat {  // what a rank of the job has
  std::unique_ptr<CausalLM> actor;
  CausalLM* model = nullptr;  // the rollout's
  std::unique_ptr<RolloutRole> rollout;
  int rank = 0;

  void train(uint64_t version) {
    rollout->actor_changes();
    init_weights(*actor, version);
  }
  // A greedy response of the rollout's weights.
  std::vector<int32_t> response(RequestId id) {
    GenerationRequest r;
    r.id = id;
    r.prompt_ids = {1, 2, 3};
    r.params.temperature = 0, r.params.max_tokens = 6, r.params.ignore_eos = true;
    rollout->engine()->add(r);
    while (rollout->engine()->step()) {
    }
    return rollout->engine()->take_finished().at(0).trajectory.response_ids;
  }
};

void on_four(const std::string& mode, const std::function<void(Seat&)>& fn) {
  Recipe recipe;
  recipe.actor.mesh = "fsdp=4", recipe.rollout.mesh = "dp=2,tp=2", recipe.refit.mode = mode;
  const ModelConfig config = weft::testing::config_of("moe");
  CommOptions options;
  options.threads_per_rank = 1;
  run_ranks(4, options, [&](Communicator& world) {
    const Roles roles = make_roles(place_roles(recipe, 4), world);
    Seat s;
    s.rank = world.rank();
    s.actor = std::make_unique<CausalLM>(config, at::kFloat);
    parallelize(*s.actor, roles.actor);
    s.actor->materialize(at::kCPU);
    s.rollout = std::make_unique<RolloutRole>(recipe, config, at::kFloat, s.actor.get(), roles, [&](CausalLM& model) {
      s.model = &model;
      return std::make_unique<Engine>(model, EngineConfig{.max_num_seqs = 4, .kv_cache_tokens = 128}, nullptr);
    });
    fn(s);
  });
}

TEST(RolloutRole, InPlaceHasNoWeightsBetweenTheUpdateAndTheNextGoodRefit) {
  on_four("in_place", [](Seat& s) {
    s.train(1);
    s.rollout->refit(1);
    const std::vector<int32_t> first = s.response(0);
    s.train(2);
    EXPECT_THROW(s.response(1), ValueError) << "the actor has changed";
    s.rollout->on_refit_progress([&](int64_t done, int64_t of) {
      if (s.rank == 2 && done == of)
        *static_cast<uint32_t*>(s.model->find_parameter("model.norm.weight")->local_compute().data_ptr()) ^= 64;
    });
    try {
      s.rollout->refit(2);
      ADD_FAILURE() << "a flipped bit";
    } catch (const RefitError& e) {
      EXPECT_NE(std::string(e.what()).find("model.norm.weight"), std::string::npos) << e.what();
    }
    EXPECT_EQ(s.rollout->version(), 1);
    EXPECT_THROW(s.response(2), ValueError) << "neither the old weights nor the new";
    s.rollout->on_refit_progress({});
    s.rollout->refit(2);
    EXPECT_EQ(s.rollout->version(), 2);
    EXPECT_NE(s.response(3), first);
  });
}

TEST(RolloutRole, TransactionalKeepsTheOldVersionWhereMemoryIsShort) {
  on_four("transactional", [](Seat& s) {
    s.train(1);
    s.rollout->refit(1);
    const std::vector<int32_t> first = s.response(0);
    s.train(2);
    EXPECT_EQ(s.response(1), first) << "the old version serves";
    int64_t buckets = 0;
    s.rollout->on_refit_progress([&](int64_t, int64_t) { ++buckets; });
    if (s.rank == 1) s.rollout->set_available_memory([] { return int64_t{1000}; });
    try {
      s.rollout->refit(2);
      ADD_FAILURE() << "no memory on rank 1";
    } catch (const SystemError& e) {
      EXPECT_NE(std::string(e.what()).find("refit.mode = \"in_place\" needs none. The rollout keeps version 1"),
                std::string::npos)
          << e.what();
    }
    EXPECT_EQ(buckets, 0) << "nothing moved";
    EXPECT_EQ(s.response(2), first);
    s.rollout->set_available_memory([] { return int64_t{1} << 40; });
    s.rollout->refit(2);
    EXPECT_GT(buckets, 0);
    EXPECT_NE(s.response(3), first);
  });
}

}  // namespace
}  // namespace weft
