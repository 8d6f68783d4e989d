// rollout.dtype = "int8": whatever mesh trains and whatever mesh samples, weights, tokens and log-probs are those of one rank;
// and short runs with it.
#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <mutex>

#include "weft/base/error.h"
#include "weft/comm/launch.h"
#include "weft/kernels/quantize.h"
#include "weft/kernels/quantize_reference.h"
#include "weft/model/int8_weights.h"
#include "weft/model/parallelize.h"
#include "weft/rollout/engine_test_support.h"
#include "weft/train/rollout_role.h"
#include "weft/train/test_refit_pairs.h"
#include "weft/train/test_runs.h"
#include "weft/train/trainer.h"

namespace weft {
namespace {

CommOptions one_thread_ranks() {
  CommOptions options;
  options.threads_per_rank = 1;
  return options;
}

// Weights of one seed, so large that logits are far from uniform.
void set_weights(CausalLM& model, uint64_t seed) {
  init_weights(model, seed);
  const at::NoGradGuard guard;
  for (nn::Parameter* p : model.parameters()) {
    if (p->dim() > 1) p->master().mul_(8.0);
    p->updated();
  }
}

EngineConfig int8_engine() { return {.max_num_seqs = 4, .kv_cache_tokens = 256}; }

test::Samples sample_some(Engine& engine, int64_t round) {
  for (int64_t i = 0; i < 2; ++i) {
    GenerationRequest r = test::request(i, 9 + 11 * i, 6, 2);
    for (int32_t& id : r.prompt_ids) id %= 53;
    r.seed += static_cast<uint64_t>(round);
    engine.add(r);
  }
  return test::run_all(engine);
}

// The oracle: every row of the whole fp32 weights quantised by the scalar loops, on one rank without a refit.
struct Int8Oracle {
  ModelConfig config;
  at::ScalarType dtype;
  std::unique_ptr<CausalLM> trained, model;
  test::Samples samples;

  Int8Oracle(const std::string& kind, at::ScalarType type, uint64_t seed) : config(testing::config_of(kind)), dtype(type) {
    const at::NoGradGuard guard;
    trained = std::make_unique<CausalLM>(config, dtype);
    trained->materialize(at::kCPU);
    set_weights(*trained, seed);
    model = std::make_unique<CausalLM>(config, dtype);
    for (nn::Parameter* p : model->parameters()) {
      nn::Parameter* from = trained->find_parameter(p->name());
      if (!int8_in_rollout(p->name())) {
        p->freeze(at::kCPU, dtype, from->compute());
        continue;
      }
      p->freeze_int8(at::kCPU, dtype);
      const int64_t k = p->shape().back();
      const float* w = from->master().data_ptr<float>();
      for (int64_t row = 0; row < p->numel() / k; ++row) {
        float& scale = p->row_scales().data_ptr<float>()[row];
        scale = kernels::row_scale(kernels::reference::max_magnitude(w + row * k, k));
        kernels::reference::quantize(w + row * k, scale, p->compute().data_ptr<int8_t>() + row * k, k);
      }
    }
    Engine engine(*model, int8_engine(), nullptr);
    samples = sample_some(engine, 0);
  }

  void expect_weights(CausalLM& got, const ParallelDims& dims, int64_t rank, const std::string& where) const {
    for (nn::Parameter* p : got.parameters())
      for (const LocalBox& b : rollout_layout(config, dims, *p).boxes(rank)) {
        nn::Parameter* w = model->find_parameter(p->name());
        const auto narrow = [&](at::Tensor t, const std::vector<int64_t>& offset) {
          for (int64_t d = 0; d < t.dim(); ++d)
            t = t.narrow(d, offset[static_cast<size_t>(d)], b.box.size[static_cast<size_t>(d)]);
          return t;
        };
        ASSERT_TRUE(narrow(p->compute(), b.local_offset).equal(narrow(w->compute(), b.box.offset))) << where << ": " << p->name();
        ASSERT_EQ(p->row_scales().defined(), w->row_scales().defined());
        if (p->row_scales().defined()) {
          ASSERT_TRUE(narrow(p->row_scales(), b.local_offset).equal(narrow(w->row_scales(), b.box.offset))) << where << p->name();
        }
      }
  }
};

bool same_samples(const test::Samples& a, const test::Samples& b) {
  bool same = a.size() == b.size();
  for (const auto& [key, s] : a) {
    Trajectory x = s.trajectory, y = same ? b.at(key).trajectory : Trajectory{};
    x.weight_versions = y.weight_versions;
    same = same && x == y;
  }
  return same;
}

TEST(RolloutInt8, WeightsAndSamplesOfEveryMeshAreThoseOfOneRank) {
  struct Pair {
    const char *model, *actor, *rollout;
    bool apart;
    at::ScalarType dtype;
    const char* mode;
  };
  const at::ScalarType f32 = at::kFloat, bf16 = at::kBFloat16;
  const Pair pairs[] = {
      {"moe", "fsdp=4", "dp=2,tp=2", false, f32, "in_place"},
      {"moe", "fsdp=2,tp=2", "dp=1,tp=4", false, f32, "transactional"},
      {"moe", "fsdp=4,ep=4", "dp=4,ep=4", false, bf16, "in_place"},
      {"moe", "cp=2,tp=2", "dp=4", false, f32, "in_place"},
      {"moe", "replicate=2,fsdp=2", "dp=2,tp=2,ep=4", false, bf16, "transactional"},
      {"moe", "fsdp=3", "dp=1,tp=2", true, f32, "transactional"},
      {"moe", "fsdp=1", "dp=2,ep=2", true, bf16, "in_place"},
      {"dense", "fsdp=3", "dp=3", false, f32, "in_place"},
      {"dense", "fsdp=3,tp=2", "dp=3,tp=2", false, f32, "transactional"},
      {"dense", "tp=4", "dp=1,tp=2", true, f32, "in_place"},
      {"three_experts", "fsdp=3,ep=3", "dp=3,ep=3", false, f32, "in_place"},
      {"over_encoded", "fsdp=2", "dp=2", false, f32, "in_place"},
  };
  std::map<std::pair<std::string, at::ScalarType>, std::vector<std::unique_ptr<Int8Oracle>>> oracles;
  std::atomic<int64_t> moved{0}, int8_bytes{0};
  for (const Pair& pair : pairs) {
    auto& versions = oracles[{pair.model, pair.dtype}];
    for (uint64_t seed = 1; versions.size() < 2; ++seed)
      versions.push_back(std::make_unique<Int8Oracle>(pair.model, pair.dtype, seed));
    EXPECT_FALSE(same_samples(versions[0]->samples, versions[1]->samples)) << "other weights, other samples";
    RolePlaces p;
    const ParallelDims actor = parse_parallel_dims(pair.actor, 0, {"oe"}), rollout = parse_rollout_dims(pair.rollout, 0, {"oe"});
    p.actor = {actor, testing::ranks_from(0, actor.world())};
    p.rollout = {rollout, testing::ranks_from(pair.apart ? static_cast<int>(actor.world()) : 0, rollout.world())};
    p.world = static_cast<int>(std::max<int64_t>(actor.world(), p.rollout.ranks.back() + 1));
    p.reference = p.critic = p.reward_model = p.actor;
    const std::string where = testing::text_of(p);
    Recipe recipe;
    recipe.rollout.dtype = "int8";
    recipe.refit.mode = pair.mode;
    run_ranks(p.world, one_thread_ranks(), [&](Communicator& world) {
      const at::NoGradGuard guard;
      const Roles roles = make_roles(p, world);
      const ModelConfig& config = versions[0]->config;
      std::unique_ptr<CausalLM> trained;
      if (roles.actor) {
        trained = std::make_unique<CausalLM>(config, pair.dtype);
        parallelize(*trained, roles.actor);
        trained->materialize(at::kCPU);
      }
      CausalLM* model = nullptr;
      RolloutRole role(recipe, config, pair.dtype, trained.get(), roles, [&](CausalLM& m) {
        model = &m;
        return std::make_unique<Engine>(m, int8_engine(), nullptr);
      });
      for (size_t version = 0; version < 2; ++version) {
        const Int8Oracle& oracle = *versions[version];
        role.actor_changes();
        if (trained) set_weights(*trained, version + 1);
        world.stats().clear();
        const RefitReport report = role.refit(static_cast<int64_t>(version));
        int64_t received = 0;  // as the communicator counts
        for (const CommStatsRow& row : world.stats().rows())
          if (row.purpose == "refit") received += row.bytes.received;
        ASSERT_EQ(received, role.needed_bytes()) << where;
        ASSERT_EQ(report.received, received);
        moved += received;
        if (!model) continue;
        oracle.expect_weights(*model, p.rollout.dims, roles.rollout->rank(), where);
        test::Samples samples = sample_some(*role.engine(), 0);
        EXPECT_TRUE(same_samples(oracle.samples, samples)) << where << ", version " << version;
      }
      if (model)
        for (nn::Parameter* q : model->parameters())
          if (q->row_scales().defined()) {
            int8_bytes += static_cast<int64_t>(q->compute().nbytes());
            EXPECT_TRUE(!trained || q->compute().data_ptr() != trained->find_parameter(q->name())->local_compute().data_ptr());
          }
    });
  }
  EXPECT_GT(moved, 0);
  EXPECT_GT(int8_bytes, 0);
}

// A refit that meets what is not finite: the version before goes on, with its scales; in place there is none until the next.
TEST(RolloutInt8, ARefusedRefitKeepsTheOldVersionWithItsScales) {
  const Int8Oracle oracle("moe", at::kFloat, 1);
  for (const char* mode : {"transactional", "in_place"}) {
    RolePlaces p;
    p.actor = {parse_parallel_dims("fsdp=2", 0, {}), {0, 1}};
    p.rollout = {parse_rollout_dims("tp=2", 0, {}), {0, 1}};
    p.world = 2;
    p.reference = p.critic = p.reward_model = p.actor;
    Recipe recipe;
    recipe.rollout.dtype = "int8";
    recipe.refit.mode = mode;
    run_ranks(2, one_thread_ranks(), [&](Communicator& world) {
      const at::NoGradGuard guard;
      const Roles roles = make_roles(p, world);
      CausalLM trained(oracle.config, at::kFloat);
      parallelize(trained, roles.actor);
      trained.materialize(at::kCPU);
      RolloutRole role(recipe, oracle.config, at::kFloat, &trained, roles,
                       [&](CausalLM& m) { return std::make_unique<Engine>(m, int8_engine(), nullptr); });
      set_weights(trained, 1);
      role.refit(1);
      EXPECT_TRUE(same_samples(oracle.samples, sample_some(*role.engine(), 0)));
      role.actor_changes();
      set_weights(trained, 2);
      nn::Parameter* hurt = trained.find_parameter("model.layers.2.mlp.experts.down_proj");
      if (world.rank() == 1) hurt->master().data_ptr<float>()[7] = NAN;
      try {
        role.refit(2);
        ADD_FAILURE() << "a NaN passed";
      } catch (const ValueError& e) {
        EXPECT_NE(std::string(e.what()).find("model.layers.2.mlp.experts.down_proj: row "), std::string::npos) << e.what();
      }
      EXPECT_EQ(role.version(), 1);
      if (role.transactional()) {
        EXPECT_TRUE(same_samples(oracle.samples, sample_some(*role.engine(), 0)));
      } else {
        EXPECT_THROW(sample_some(*role.engine(), 0), ValueError);
      }
      set_weights(trained, 1);
      role.refit(3);
      EXPECT_TRUE(same_samples(oracle.samples, sample_some(*role.engine(), 0)));
    });
  }
}

class Int8Training : public RunTest {
 protected:
  void train(const std::string& run, const std::string& mesh, int64_t steps, std::vector<std::string> more) {
    more.push_back(fmt::format("trainer.total_training_steps={}", steps));
    more.push_back("actor.mesh=" + mesh);
    more.push_back("rollout.dtype=int8");
    const Recipe r = recipe(run, more);
    const int64_t n = ranks_of_recipe(r);
    if (n == 1) return Trainer(r, registry_).run();
    run_ranks(static_cast<int>(n), one_thread_ranks(),
              [&](Communicator& world) { Trainer(r, registry_, make_roles(place_roles(r, n), world, actor_sharing(r))).run(); });
  }
};

TEST_F(Int8Training, TheGapIsMeasuredAndCorrectedAndNoMeshChangesTheFirstStep) {
  const std::vector<std::string> common = {"router_replay.mode=R3", "algorithm.rollout_correction.rollout_is=token"};
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"fsdp=2", {"rollout.mesh=tp=2"}},
      {"cp=2,tp=2", {"rollout.mesh=dp=2,tp=2,ep=4", "refit.mode=transactional"}},
      {"fsdp=2,ep=2", {"actor.ranks=0-1", "rollout.mesh=dp=2", "rollout.ranks=2-3"}},
      {"fsdp=3", {"memory.limit=2GB"}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string name = fmt::format("int8_{}", i);
    SCOPED_TRACE(cases[i].first);
    std::vector<std::string> more = common;
    more.insert(more.end(), cases[i].second.begin(), cases[i].second.end());
    train(name, cases[i].first, 2, more);
    const auto rows = metrics(name, true);
    ASSERT_EQ(rows.size(), 2u);
    for (const nlohmann::json& row : rows) {
      for (const char* key : {"parity/max_abs_diff", "parity/unequal_tokens", "rollout_corr/max_abs", "rollout_corr/mean_abs"}) {
        EXPECT_GT(row.at(key).get<double>(), 0) << key;
        EXPECT_LT(row.at(key).get<double>(), std::string(key).find("tokens") == std::string::npos ? 2 : 100) << key;
      }
      EXPECT_NE(row.at("rollout_corr/is_mean").get<double>(), 1);
      EXPECT_TRUE(std::isfinite(row.at("actor/grad_norm").get<double>()));
      EXPECT_EQ(row.at("refit/byte_ratio").get<double>(), 1);
      EXPECT_GT(row.at("comm/world/refit_scales/received_bytes").get<double>(), 0);
    }
    if (i == 0) continue;
    const nlohmann::json a = metrics("int8_0").at(0), b = metrics(name).at(0);
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [key, value] : a.items())
      if (key != "actor/grad_norm") {  // whose terms are summed by shard
        EXPECT_EQ(value, b.at(key)) << key;
      }
  }
}

TEST_F(Int8Training, ParityIsNotPromisedAndOneRankHasNoRolloutOfItsOwn) {
  EXPECT_THROW(train("required", "fsdp=2", 1, {"trainer.parity=require"}), UsageError);
  EXPECT_THROW(train("one", "fsdp=1", 1, {}), UsageError);
  train("bf16", "fsdp=2", 1, {"rollout.mesh=tp=2", "actor.param_dtype=bfloat16"});
  EXPECT_GT(metrics("bf16").at(0).at("parity/max_abs_diff").get<double>(), 0);
  const Recipe resolved = load_recipe(run_file("bf16", "recipe.toml"), {}, RecipeUse::kTrain);
  EXPECT_EQ(resolved.trainer.parity, "report");
  EXPECT_EQ(resolved.rollout.dtype, "int8");
}

}  // namespace
}  // namespace weft
