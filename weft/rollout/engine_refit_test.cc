// Requests that run while the weights change.

#include <ATen/core/Tensor.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "weft/rollout/engine_test_support.h"

namespace weft {
namespace {

using namespace test;

void set_weights(CausalLM& model, uint64_t seed) {
  init_weights(model, seed);
  c10::NoGradGuard guard;
  for (nn::Parameter* p : model.parameters()) {
    if (p->dim() > 1) p->master().mul_(15.0);
    p->updated();
  }
}

EngineConfig engine_config(int64_t batched, int64_t block) {
  EngineConfig c;
  c.record_routing = true;
  c.max_num_batched_tokens = batched, c.block_size = block, c.kv_cache_tokens = 800;
  c.weight_version = 1;
  return c;
}

// Prompts on and off block boundaries, alone and in groups that share blocks, long enough to wait for each other.
std::vector<GenerationRequest> running_requests() {
  std::vector<GenerationRequest> r = {request(0, 1, 12), request(1, 37, 10, 3), request(2, 32, 9, 2), request(3, 50, 14),
                                      request(4, 16, 8, 4)};
  r[1].params.temperature = 0.7, r[1].params.top_p = 0.9;
  return r;
}

// After the change each sample goes on as in an engine that never had other weights and was given what the sample had by then:
// tokens, log-probs, routes of all positions.
void expect_cold_continuation(CausalLM& model, const GeneratedSample& s, const GenerationRequest& r) {
  const Trajectory& t = s.trajectory;
  int64_t begin = 0;  // of the tokens drawn with the last weights
  ASSERT_FALSE(t.weight_versions.empty());
  for (size_t i = 0; i + 1 < t.weight_versions.size(); ++i) begin = t.weight_versions[i].end;
  ASSERT_EQ(t.weight_versions.back().end, std::ssize(t.response_ids));
  if (begin == std::ssize(t.response_ids)) return;
  GenerationRequest cold = r;
  cold.prompt_ids.insert(cold.prompt_ids.end(), t.response_ids.begin(), t.response_ids.begin() + begin);
  cold.params.n = t.sample_index + 1;  // random numbers are keyed by the sample's index and the absolute position
  cold.params.max_tokens = r.params.max_tokens - begin;
  const Samples fresh = run(model, {cold}, engine_config(64, 16));
  const Trajectory& expected = fresh.at({r.id, t.sample_index}).trajectory;
  EXPECT_EQ(std::vector<int32_t>(t.response_ids.begin() + begin, t.response_ids.end()), expected.response_ids);
  EXPECT_EQ(std::vector<float>(t.rollout_log_probs.begin() + begin, t.rollout_log_probs.end()), expected.rollout_log_probs);
  ASSERT_EQ(t.routing.has_value(), expected.routing.has_value());
  if (!t.routing) return;
  ASSERT_EQ(t.routing->num_rows(), expected.routing->num_rows());
  for (int64_t row = 0; row < t.routing->num_rows(); ++row)
    for (int64_t l = 0; l < t.routing->num_layers(); ++l) ASSERT_EQ(t.routing->get(row, l), expected.routing->get(row, l)) << row;
}

class EngineRefit : public ::testing::TestWithParam<Kind> {};

TEST_P(EngineRefit, RunningRequestsGoOnUnderNewWeights) {
  int64_t mixed = 0, untouched = 0;
  for (const int64_t steps : {1, 2, 3, 5, 8, 13}) {
    for (const auto& [batched, block] : {std::pair<int64_t, int64_t>{11, 16}, {64, 4}, {7, 32}}) {
      const auto model = small_model(GetParam(), at::kFloat);
      set_weights(*model, 5);
      Engine engine(*model, engine_config(batched, block), nullptr);
      const std::vector<GenerationRequest> r = running_requests();
      for (const GenerationRequest& q : r) engine.add(q);
      for (int64_t i = 0; i < steps; ++i) engine.step();
      Samples done;
      collect(engine, done);
      const size_t before = done.size();
      set_weights(*model, 6);
      engine.weights_changed(2);
      engine.check_integrity();
      // Twice in a row, with a step of recomputing in between.
      engine.step();
      set_weights(*model, 7);
      engine.weights_changed(3);
      done = run_all(engine, std::move(done));
      ASSERT_EQ(done.size(), 11u);
      EXPECT_EQ(engine.num_free_blocks(), engine.num_blocks());
      for (const auto& [key, s] : done) {
        if (s.trajectory.weight_versions.back().version != 3) {
          ++untouched;
          continue;
        }
        mixed += s.trajectory.weight_versions.size() > 1;
        expect_cold_continuation(*model, s, r[static_cast<size_t>(key.first)]);
        if (HasFailure())
          FAIL() << "steps " << steps << ", block " << block << ", request " << key.first << " sample " << key.second;
      }
      EXPECT_LE(before, done.size());
    }
  }
  EXPECT_GT(mixed, 20);  // the sample holds what it is for
}

// The inverse: with the keys of the old weights the same comparison fails.
TEST_P(EngineRefit, StaleKeysWouldShow) {
  const auto model = small_model(GetParam(), at::kFloat);
  set_weights(*model, 5);
  Engine engine(*model, engine_config(64, 16), nullptr);
  engine.add(request(3, 50, 14));
  for (int i = 0; i < 6; ++i) engine.step();
  set_weights(*model, 6);  // and nobody tells the engine
  const Samples done = run_all(engine);
  const Trajectory& t = done.begin()->second.trajectory;
  GenerationRequest cold = request(3, 50, 14);
  cold.prompt_ids.insert(cold.prompt_ids.end(), t.response_ids.begin(), t.response_ids.begin() + 5);
  cold.params.max_tokens = 9;
  const Samples fresh = run(*model, {cold}, engine_config(64, 16));
  EXPECT_NE(std::vector<float>(t.rollout_log_probs.begin() + 5, t.rollout_log_probs.end()),
            fresh.begin()->second.trajectory.rollout_log_probs);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineRefit, ::testing::Values(Kind::kDense, Kind::kMoe, Kind::kOverEncoded));

}  // namespace
}  // namespace weft
