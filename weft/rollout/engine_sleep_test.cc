// An engine whose cache sleeps, and what becomes of the requests that run then.

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "weft/base/error.h"
#include "weft/rollout/engine_test_support.h"

namespace weft {
namespace {

using namespace test;

EngineConfig sleeping(RunningRequests running) {
  EngineConfig c;
  c.record_routing = true;
  c.max_num_batched_tokens = 24, c.block_size = 16, c.kv_cache_tokens = 800;
  c.weight_version = 1;
  c.running = running;
  return c;
}

std::vector<GenerationRequest> some_requests() {
  return {request(0, 1, 12), request(1, 37, 10, 3), request(2, 32, 9, 2), request(3, 50, 14), request(4, 16, 8, 4)};
}

std::string here() { return std::filesystem::temp_directory_path().string(); }

void expect_equal(const Samples& a, const Samples& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [key, s] : a) {
    const Trajectory &x = s.trajectory, &y = b.at(key).trajectory;
    EXPECT_EQ(x.response_ids, y.response_ids);
    EXPECT_EQ(x.rollout_log_probs, y.rollout_log_probs);
    EXPECT_EQ(x.finish_reason, y.finish_reason);
    ASSERT_EQ(x.routing->num_rows(), y.routing->num_rows());
    for (int64_t row = 0; row < x.routing->num_rows(); ++row)
      for (int64_t l = 0; l < x.routing->num_layers(); ++l) ASSERT_EQ(x.routing->get(row, l), y.routing->get(row, l));
  }
}

TEST(EngineSleep, RunningRequestsGoOnBitForBit) {
  const auto model = small_model(Kind::kMoe, at::kFloat);
  const Samples awake = run(*model, some_requests(), sleeping(RunningRequests::kPause));
  for (const RunningRequests mode : {RunningRequests::kPause, RunningRequests::kKeep})
    for (const int every : {1, 3, 7}) {
      Engine engine(*model, sleeping(mode), nullptr);
      for (const GenerationRequest& r : some_requests()) engine.add(r);
      Samples done;
      for (int i = 0; engine.step(); ++i) {
        collect(engine, done);
        if (i % every != 0 || i > 20) continue;
        engine.sleep(here());
        EXPECT_EQ(engine.kv_cache_arena().resident_bytes(), 0);
        engine.sleep(here());  // is asleep already
        engine.wake();
        engine.wake();
        engine.check_integrity();
      }
      collect(engine, done);
      expect_equal(done, awake);
      EXPECT_EQ(engine.kv_cache_arena().traffic().stored > 0, mode == RunningRequests::kKeep);
    }
}

TEST(EngineSleep, NothingGeneratesAsleep) {
  const auto model = small_model(Kind::kDense, at::kFloat);
  Engine engine(*model, sleeping(RunningRequests::kPause), nullptr);
  engine.add(request(0, 5, 3));
  engine.step();
  engine.sleep(here());
  for (const auto& call : {std::function<void()>([&] { engine.add(request(1, 5, 3)); }), {[&] { engine.step(); }}}) try {
      call();
      FAIL();
    } catch (const ValueError& e) {
      EXPECT_STREQ(e.what(), "rollout.kv_cache is asleep: wake it first");
    }
  engine.wake();
  EXPECT_EQ(run_all(engine).size(), 1U);
}

TEST(EngineSleep, AKeptCacheThatCannotBeStoredStays) {
  const auto model = small_model(Kind::kMoe, at::kFloat);
  Engine engine(*model, sleeping(RunningRequests::kKeep), nullptr);
  for (const GenerationRequest& r : some_requests()) engine.add(r);
  for (int i = 0; i < 4; ++i) engine.step();
  EXPECT_THROW(engine.sleep("/nowhere/at/all"), SystemError);
  expect_equal(run_all(engine), run(*model, some_requests(), sleeping(RunningRequests::kPause)));
}

// What has tokens is given as it is; all blocks are free.
TEST(EngineSleep, AbortedSamplesAreGiven) {
  const auto model = small_model(Kind::kMoe, at::kFloat);
  const Samples whole = run(*model, some_requests(), sleeping(RunningRequests::kPause));
  for (const bool refit : {false, true}) {
    Engine engine(*model, sleeping(RunningRequests::kAbort), nullptr);
    for (const GenerationRequest& r : some_requests()) engine.add(r);
    for (int i = 0; i < 9; ++i) engine.step();
    const int64_t drawn = engine.tokens_generated();
    if (refit)
      engine.weights_changed(2);
    else
      engine.sleep(here());
    engine.wake();
    engine.check_integrity();
    EXPECT_EQ(engine.num_free_blocks(), engine.num_blocks());
    EXPECT_FALSE(engine.step());
    Samples given;
    collect(engine, given);
    int64_t aborted = 0, tokens = 0;
    for (const auto& [key, s] : given) {
      const Trajectory &t = s.trajectory, &all = whole.at(key).trajectory;
      aborted += t.finish_reason == "abort";
      tokens += std::ssize(t.response_ids);
      ASSERT_LE(t.response_ids.size(), all.response_ids.size());
      EXPECT_TRUE(std::equal(t.response_ids.begin(), t.response_ids.end(), all.response_ids.begin()));
      EXPECT_EQ(t.routing->num_rows(), std::ssize(t.prompt_ids) + std::ssize(t.response_ids) - 1);
    }
    EXPECT_GT(aborted, 2);
    EXPECT_EQ(tokens, drawn);  // none is lost
    engine.add(request(0, 5, 3));
    EXPECT_EQ(run_all(engine).size(), 1U);
  }
}

// At a refit: the old keys are read on, as an engine that was not told would, and the spans say whose tokens are whose.
TEST(EngineSleep, KeptRequestsReadTheirOldKeys) {
  const auto model = small_model(Kind::kMoe, at::kFloat);
  std::vector<Samples> results;
  for (const bool told : {true, false}) {
    init_weights(*model, 5);
    for (nn::Parameter* p : model->parameters()) p->updated();
    Engine engine(*model, sleeping(RunningRequests::kKeep), nullptr);
    engine.add(request(3, 50, 14));
    for (int i = 0; i < 8; ++i) engine.step();
    init_weights(*model, 6);
    for (nn::Parameter* p : model->parameters()) p->updated();
    if (told) engine.weights_changed(2);
    results.push_back(run_all(engine));
  }
  expect_equal(results[0], results[1]);
  const std::vector<WeightSpan>& spans = results[0].begin()->second.trajectory.weight_versions;
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].version, 1);
  EXPECT_EQ(spans[1].version, 2);
  EXPECT_EQ(spans[1].end, 14);
}

}  // namespace
}  // namespace weft
