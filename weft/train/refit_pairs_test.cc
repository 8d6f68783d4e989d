// Byte ratio 1.000 and even senders for pairs of meshes (tests/refit_pairs_slow_test.cc: for all), and real bytes for 60.
#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "weft/base/random.h"
#include "weft/comm/launch.h"
#include "weft/model/parallelize.h"
#include "weft/train/rollout_role.h"
#include "weft/train/test_refit_pairs.h"

namespace weft {
namespace {

// 7 is prime: each axis of the product is covered.
TEST(RefitPairs, ASeventhIsExactAndEven) { weft::testing::expect_exact_and_even(7); }

// Every parameter's value is a function of its place in the whole model.
void expect_weights(CausalLM& model, const ParallelDims& dims, int64_t rank, CausalLM& whole, const std::string& where) {
  for (nn::Parameter* p : model.parameters()) {
    for (const LocalBox& b : rollout_layout(model.config(), dims, *p).boxes(rank)) {
      at::Tensor expected = whole.find_parameter(p->name())->compute(), got = p->compute();
      for (int64_t d = 0; d < p->dim(); ++d) {
        const auto at = static_cast<size_t>(d);
        expected = expected.narrow(d, b.box.offset[at], b.box.size[at]);
        got = got.narrow(d, b.local_offset[at], b.box.size[at]);
      }
      ASSERT_TRUE(got.equal(expected)) << where << ": " << p->name() << " of rank " << rank;
    }
  }
}

TEST(RefitPairs, SixtyWithRealBytes) {
  const std::vector<RolePlaces> pairs = weft::testing::all_pairs();
  const std::vector<std::string> kinds = {"moe", "over_encoded", "dense"};
  int64_t apart = 0;
  for (size_t i = 0; i < 60; ++i) {
    const RolePlaces& p = pairs[hash_combine(17, i) % pairs.size()];
    if (p.world == 1) continue;
    apart += !p.colocated();
    const ModelConfig config = weft::testing::config_of(kinds[i % 3]);
    const at::ScalarType dtype = i % 2 ? at::kFloat : at::kBFloat16;
    Recipe recipe;
    recipe.refit.mode = i % 4 < 2 ? "in_place" : "transactional";
    recipe.rollout.dtype = i % 2 ? "float32" : "bfloat16";
    CommOptions options;
    options.threads_per_rank = 1;
    run_ranks(p.world, options, [&](Communicator& world) {
      const Roles roles = make_roles(p, world);
      CausalLM whole(config, dtype);
      whole.materialize(at::kCPU);
      std::unique_ptr<CausalLM> actor;
      if (roles.actor) {
        actor = std::make_unique<CausalLM>(config, at::kFloat);  // fp32 becomes bf16 on the way
        parallelize(*actor, roles.actor);
        actor->materialize(at::kCPU);
      }
      CausalLM* rollout_model = nullptr;
      RolloutRole rollout(recipe, config, at::kFloat, actor.get(), roles, [&](CausalLM& model) {
        rollout_model = &model;
        return std::make_unique<Engine>(model, EngineConfig{.max_num_seqs = 4, .kv_cache_tokens = 64}, nullptr);
      });
      if (rollout.engine()) {
        GenerationRequest request;
        request.prompt_ids = {1};
        EXPECT_THROW(rollout.engine()->add(request), ValueError) << "nothing has come yet";
      }
      for (int64_t version = 1; version <= 2; ++version) {
        init_weights(whole, static_cast<uint64_t>(version));
        if (actor) {
          rollout.actor_changes();
          init_weights(*actor, static_cast<uint64_t>(version));
        }
        world.stats().clear();
        const RefitReport report = rollout.refit(version);
        int64_t received = 0;  // as the communicator counts
        for (const CommStatsRow& row : world.stats().rows())
          if (row.purpose == "refit") received += row.bytes.received;
        ASSERT_EQ(received, rollout.needed_bytes()) << weft::testing::text_of(p);
        ASSERT_EQ(report.received, received);
        if (rollout_model)
          expect_weights(*rollout_model, p.rollout.dims, roles.rollout->rank(), whole, weft::testing::text_of(p));
        EXPECT_EQ(rollout.version(), version);
      }
    });
  }
  EXPECT_GT(apart, 10);
}

}  // namespace
}  // namespace weft
