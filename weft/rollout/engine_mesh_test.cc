// Tokens, log-probs, kept sets and routes on every rollout mesh are those of one rank, bit for bit.

#include <ATen/core/Tensor.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <mutex>

#include "weft/comm/launch.h"
#include "weft/model/parallelize.h"
#include "weft/rollout/engine_test_support.h"

namespace weft {
namespace {

using namespace test;

// 8 query heads, so that tp may be 1, 2, 4 and 8; widths that eighths do not divide; more tp ranks than key/value heads.
ModelConfig mesh_config(Kind kind) {
  ModelConfig c = small_config(kind, kVocab);
  c.num_heads = 8, c.num_kv_heads = 2, c.head_dim = 6, c.intermediate_size = 50;
  c.inv_freq.resize(3);
  return c;
}

std::unique_ptr<CausalLM> whole_model(Kind kind, at::ScalarType dtype) {
  auto model = std::make_unique<CausalLM>(mesh_config(kind), dtype);
  model->materialize(at::kCPU);
  init_weights(*model, 5);
  c10::NoGradGuard guard;
  for (nn::Parameter* p : model->parameters()) {
    if (p->dim() > 1) p->master().mul_(15.0);
    p->updated();
  }
  return model;
}

std::unique_ptr<CausalLM> model_on(std::shared_ptr<const RankMesh> mesh, CausalLM& whole) {
  auto model = std::make_unique<CausalLM>(whole.config(), whole.param_dtype());
  place_for_rollout(*model, mesh);
  for (nn::Parameter* p : model->parameters()) {
    p->freeze(at::kCPU, whole.param_dtype());
    const Layout layout = rollout_layout(whole.config(), mesh->dims, *p);
    for (const LocalBox& b : layout.boxes(mesh->rank())) {
      at::Tensor from = whole.find_parameter(p->name())->compute(), to = p->compute();
      for (int64_t d = 0; d < p->dim(); ++d) {
        from = from.narrow(d, b.box.offset[static_cast<size_t>(d)], b.box.size[static_cast<size_t>(d)]);
        to = to.narrow(d, b.local_offset[static_cast<size_t>(d)], b.box.size[static_cast<size_t>(d)]);
      }
      to.copy_(from);
    }
  }
  return model;
}

EngineConfig config() {
  EngineConfig c;
  c.record_routing = true;
  c.block_size = 16, c.max_num_batched_tokens = 23, c.kv_cache_tokens = 600;
  c.end_ids = {11, 95};
  return c;
}

// Requests of all kinds, of which the last dp ranks of a large mesh have none.
std::vector<GenerationRequest> requests() {
  std::vector<GenerationRequest> r = {request(0, 1, 7), request(1, 40, 5, 3), request(2, 16, 9, 2), request(3, 5, 12)};
  r[1].params.temperature = 0.6, r[1].params.top_p = 0.9;
  r[2].params.top_k = 7, r[2].params.logit_bias = {{3, 4.0f}, {50, -100.0f}};
  r[3].params.min_p = 0.05, r[3].params.raw_logprobs = true;
  return r;
}

// All (dp, tp, ep) of up to 8 ranks.
std::vector<std::string> rollout_meshes() {
  std::vector<std::string> out;
  for (int64_t world = 1; world <= 8; ++world)
    for (int64_t tp : {1, 2, 4, 8})
      for (int64_t ep = 1; ep <= world; ++ep)
        if (world % tp == 0 && world % ep == 0) out.push_back(fmt::format("dp={},tp={},ep={}", world / tp, tp, ep));
  return out;
}

// What the ranks of a mesh make of the requests, dealt to its dp ranks in turn; tp ranks have to agree.
Samples run_on(const std::string& text, CausalLM& whole, const std::string& oe) {
  const ParallelDims dims = parse_rollout_dims(text + oe, 0, own_axes(whole.config()));
  Samples all;
  std::mutex mutex;
  CommOptions options;
  options.threads_per_rank = 1;
  run_ranks(static_cast<int>(dims.world()), options, [&](Communicator& world) {
    c10::NoGradGuard guard;
    const auto mesh = make_rank_mesh(dims, world);
    const std::unique_ptr<CausalLM> model = model_on(mesh, whole);
    Engine engine(*model, config(), nullptr);
    const std::vector<GenerationRequest> r = requests();
    for (size_t i = 0; i < r.size(); ++i)
      if (static_cast<int64_t>(i) % dims.fsdp == mesh->data.rank()) engine.add(r[i]);
    Samples mine = run_all(engine);
    std::lock_guard lock(mutex);
    for (auto& [key, s] : mine) {
      const auto [at, added] = all.emplace(key, s);
      EXPECT_EQ(at->second.trajectory, s.trajectory) << text << ": tp ranks";
    }
  });
  return all;
}

class EngineMesh : public ::testing::TestWithParam<std::tuple<Kind, at::ScalarType>> {};

TEST_P(EngineMesh, EqualsOneRank) {
  const auto [kind, dtype] = GetParam();
  const std::unique_ptr<CausalLM> whole = whole_model(kind, dtype);
  const Samples expected = run(*whole, requests(), config());
  const std::vector<std::string> meshes = rollout_meshes();
  ASSERT_EQ(meshes.size(), 44u);
  for (const std::string& mesh : meshes) {
    const ParallelDims dims = parse_rollout_dims(mesh, 0, {"oe"});
    if (kind == Kind::kDense && dims.ep > 1) continue;  // without effect
    for (const char* oe : kind == Kind::kOverEncoded && dims.world() % 2 == 0 ? std::vector{"", ",oe=2"} : std::vector{""}) {
      const Samples got = run_on(mesh, *whole, oe);
      ASSERT_EQ(got.size(), expected.size()) << mesh;
      for (const auto& [key, s] : got) {
        ASSERT_EQ(s.trajectory, expected.at(key).trajectory) << mesh << oe;
        ASSERT_EQ(s.raw_log_probs, expected.at(key).raw_log_probs) << mesh << oe;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineMesh,
                         ::testing::Values(std::tuple(Kind::kDense, at::kFloat), std::tuple(Kind::kMoe, at::kFloat),
                                           std::tuple(Kind::kMoe, at::kBFloat16), std::tuple(Kind::kOverEncoded, at::kFloat)));

TEST(EngineMeshTogether, RanksWithoutRequestsStepUntilAllAreDone) {
  const std::unique_ptr<CausalLM> whole = whole_model(Kind::kMoe, at::kFloat);
  const auto steps_of = [&](const std::string& text) {
    std::vector<int64_t> steps(4);
    run_ranks(4, {}, [&](Communicator& world) {
      const auto mesh = make_rank_mesh(parse_rollout_dims(text), world);
      const std::unique_ptr<CausalLM> model = model_on(mesh, *whole);
      Engine engine(*model, config(), nullptr);
      if (world.rank() == 3) engine.add(request(0, 4, 6));
      while (engine.step()) ++steps[static_cast<size_t>(world.rank())];
      EXPECT_EQ(engine.rows_computed() > 0, world.rank() == 3);
    });
    return steps;
  };
  const int64_t all = steps_of("dp=4,ep=4")[3];
  EXPECT_EQ(steps_of("dp=4,ep=4"), std::vector<int64_t>(4, all));
  EXPECT_EQ(steps_of("dp=4,ep=2"), (std::vector<int64_t>{0, 0, all, all}));
  EXPECT_EQ(steps_of("dp=4,ep=1"), (std::vector<int64_t>{0, 0, 0, all}));
}

TEST(EngineMeshTogether, SizesThatTheModelForbidsAreRefused) {
  const std::unique_ptr<CausalLM> whole = whole_model(Kind::kDense, at::kFloat);
  EXPECT_THROW(
      run_ranks(3, {},
                [&](Communicator& world) { model_on(make_rank_mesh(parse_rollout_dims("dp=1,tp=3,ep=1"), world), *whole); }),
      UsageError);
}

}  // namespace
}  // namespace weft
