#include "weft/rollout/engine.h"

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>

#include "weft/base/error.h"
#include "weft/rollout/engine_test_support.h"

namespace weft {
namespace {

using namespace test;
using testing::HasSubstr;

class EngineTest : public testing::Test {
 protected:
  EngineTest() : model(small_model(Kind::kMoe, at::kFloat)) {}
  GeneratedSample one(const GenerationRequest& r, EngineConfig c = {}) { return run(*model, {r}, c).at({r.id, 0}); }
  std::unique_ptr<CausalLM> model;
};

// ---- what ends a sample

// A request whose tokens are drawn nearly uniformly.
GenerationRequest lively(int64_t max_tokens) {
  GenerationRequest r = request(1, 6, max_tokens);
  r.params.temperature = 3.0;
  return r;
}

TEST_F(EngineTest, StopIdEndsTheSampleAndIsKept) {
  const GeneratedSample whole = one(lively(20));
  EXPECT_EQ(whole.trajectory.finish_reason, "length");
  EXPECT_EQ(whole.trajectory.response_ids.size(), 20u);
  const std::vector<int32_t> tokens = whole.trajectory.response_ids;
  const int32_t end = tokens[4];
  const auto first = std::find(tokens.begin(), tokens.end(), end);
  const std::vector<int32_t> expected(tokens.begin(), first + 1);

  GenerationRequest r = lively(20);
  r.params.stop_token_ids = {end};
  const GeneratedSample stopped = one(r);
  EXPECT_EQ(stopped.trajectory.response_ids, expected);
  EXPECT_EQ(stopped.trajectory.finish_reason, "stop");
  EXPECT_EQ(stopped.trajectory.rollout_log_probs.size(), expected.size());

  EngineConfig c;
  c.end_ids = {end, end, -5, 1000};  // what no model can draw is no end
  EXPECT_EQ(one(lively(20), c).trajectory.response_ids, expected);
  EXPECT_EQ(Engine(*model, c, nullptr).config().end_ids, std::vector<int32_t>{end});
  r = lively(20);
  r.params.ignore_eos = true;
  EXPECT_EQ(one(r, c).trajectory.response_ids, tokens);
  r.params.stop_token_ids = {end};  // still stops
  EXPECT_EQ(one(r, c).trajectory.response_ids, expected);
}

TEST_F(EngineTest, MinTokensForbidsEndsAndIsRecorded) {
  GenerationRequest r = lively(30);
  for (int32_t i = 0; i < 60; ++i) r.params.stop_token_ids.push_back(i);
  r.params.min_tokens = 5;
  EngineConfig c;
  c.end_ids = {96};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    r.seed = seed;
    const Trajectory t = one(r, c).trajectory;
    ASSERT_GE(t.response_ids.size(), 6u);
    EXPECT_EQ(t.finish_reason, "stop");
    for (size_t i = 0; i < t.response_ids.size(); ++i) {
      const bool is_end = t.response_ids[i] < 60 || t.response_ids[i] == 96;
      EXPECT_EQ(is_end, i + 1 == t.response_ids.size());
      EXPECT_EQ(t.kept[i].is_all(), i >= 5);
      if (i < 5) {
        EXPECT_EQ(t.kept[i].ids(kVocab).size(), 36u);
      }
    }
  }
}

TEST_F(EngineTest, OneTokenIsDrawnAfterThePromptAlone) {
  GenerationRequest r = request(2, 30, 1, 4);
  Engine engine(*model, {.record_routing = true}, nullptr);
  engine.add(r);
  const Samples samples = run_all(engine);
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_EQ(engine.rows_computed(), 30);
  EXPECT_EQ(engine.tokens_generated(), 4);
  r.params.max_tokens = 5;
  const Samples longer = run(*model, {r});
  for (const auto& [key, s] : samples) {
    EXPECT_EQ(s.trajectory.response_ids.size(), 1u);
    EXPECT_EQ(s.trajectory.response_ids[0], longer.at(key).trajectory.response_ids[0]);
    EXPECT_EQ(s.trajectory.routing->num_rows(), 30);
  }
}

// ---- what is recorded

TEST_F(EngineTest, KeptSetsHoldWhatWasLeft) {
  GenerationRequest r = request(4, 10, 20);
  r.params.top_k = 5;
  for (const KeptSet& k : one(r).trajectory.kept) EXPECT_EQ(k.ids(kVocab).size(), 5u);
  r.params.top_k = (int64_t{1} << 32) + 1;  // wider than any vocabulary: off
  EXPECT_TRUE(one(r).trajectory.kept.empty());
  r.params.top_k = 0, r.params.top_p = 0.7;
  const Trajectory t = one(r).trajectory;
  ASSERT_EQ(t.kept.size(), 20u);
  for (size_t i = 0; i < t.kept.size(); ++i) {
    EXPECT_TRUE(t.kept[i].contains(t.response_ids[i]));
    EXPECT_LE(t.rollout_log_probs[i], 0.0f);
  }
  r.params.top_p = 1e-300;  // the best alone
  const Trajectory sure = one(r).trajectory;
  for (float lp : sure.rollout_log_probs) EXPECT_EQ(lp, 0.0f);
  r.params.top_p = 1.0, r.params.temperature = 0.0;
  EXPECT_EQ(one(r).trajectory.response_ids, sure.response_ids);
}

TEST_F(EngineTest, BiasDecides) {
  GenerationRequest r = request(5, 10, 12);
  r.params.logit_bias = {{42, 1e4f}};
  EXPECT_EQ(one(r).trajectory.response_ids, std::vector<int32_t>(12, 42));
  r.params.logit_bias.clear();
  r.params.temperature = 3.0;
  const int32_t favourite = one(r).trajectory.response_ids[0];
  r.params.logit_bias = {{favourite, -1e4f}};
  r.params.raw_logprobs = true;
  const GeneratedSample s = one(r);
  EXPECT_EQ(std::count(s.trajectory.response_ids.begin(), s.trajectory.response_ids.end(), favourite), 0);
  EXPECT_EQ(s.raw_log_probs.size(), 12u);
  EXPECT_NE(s.raw_log_probs, s.trajectory.rollout_log_probs);
}

TEST_F(EngineTest, TrajectoriesCarryWhereTheyComeFrom) {
  Engine engine(*model, {.weight_version = 3}, nullptr);
  engine.weights_changed(8);
  GenerationRequest r = request(6, 10, 4, 2);
  r.dataset_row = 77;
  engine.add(r);
  const Samples samples = run_all(engine);
  for (const auto& [key, s] : samples) {
    const Trajectory& t = s.trajectory;
    validate_trajectory(t);
    EXPECT_EQ(t.dataset_row, 77);
    EXPECT_EQ(t.seed, r.seed);
    EXPECT_EQ(t.prompt_ids, r.prompt_ids);
    EXPECT_EQ(t.weight_versions, (std::vector<WeightSpan>{{8, 0, 4}}));
    EXPECT_EQ(t.response_mask, std::vector<uint8_t>(4, 1));
    EXPECT_FALSE(t.routing.has_value());
    EXPECT_EQ(s.text, "");
  }
}

// ---- abort

TEST_F(EngineTest, AbortInAnyStateReturnsBlocksAndLeavesOthersAlone) {
  const std::vector<GenerationRequest> requests = {request(1, 30, 10, 2), request(2, 40, 12, 3), request(3, 9, 25),
                                                   request(4, 33, 6, 2)};
  const Samples expected = run(*model, requests);
  EngineConfig c;
  c.block_size = 8, c.kv_cache_tokens = 120, c.max_num_batched_tokens = 16, c.record_routing = true;
  std::set<std::string> states;
  for (int64_t steps : {0, 1, 2, 3, 5, 8, 13, 21, 34, 55})
    for (RequestId victim : {1, 2, 4}) {
      Engine engine(*model, c, nullptr);
      for (const GenerationRequest& r : requests) engine.add(r);
      Samples got;
      for (int64_t i = 0; i < steps; ++i) engine.step();
      collect(engine, got);
      const int64_t waiting = engine.num_waiting(), free = engine.num_free_blocks();
      engine.abort(victim);
      engine.abort(victim);
      engine.abort(999);
      engine.check_integrity();
      states.insert(engine.num_waiting() < waiting ? "waiting" : engine.num_free_blocks() > free ? "running" : "over");
      got = run_all(engine, std::move(got));
      EXPECT_EQ(engine.num_free_blocks(), engine.num_blocks());
      EXPECT_EQ(engine.num_running() + engine.num_waiting(), 0);
      for (const auto& [key, s] : expected) {
        if (!got.count(key)) {
          EXPECT_EQ(key.first, victim);
          continue;
        }
        EXPECT_EQ(got.at(key).trajectory.response_ids, s.trajectory.response_ids);
        EXPECT_EQ(got.at(key).trajectory.rollout_log_probs, s.trajectory.rollout_log_probs);
      }
      if (HasFailure()) FAIL() << "request " << victim << " after " << steps << " steps";
    }
  EXPECT_EQ(states, (std::set<std::string>{"waiting", "running", "over"}));
}

TEST_F(EngineTest, AnIdMayComeAgainAfterItEnded) {
  Engine engine(*model, {}, nullptr);
  engine.add(request(1, 5, 3));
  const Samples first = run_all(engine);
  engine.add(request(1, 5, 3));
  EXPECT_THROW(engine.add(request(1, 5, 3)), ValueError);
  EXPECT_EQ(run_all(engine).at({1, 0}).trajectory, first.at({1, 0}).trajectory);
  EXPECT_FALSE(engine.step());
}

// ---- errors

std::string refusal(Engine& engine, const GenerationRequest& r) {
  try {
    engine.add(r);
  } catch (const ValueError& e) {
    return e.what();
  }
  return "";
}

TEST_F(EngineTest, RefusesWhatCannotRunAndStaysAsItWas) {
  EngineConfig c;
  c.block_size = 16, c.kv_cache_tokens = 64, c.end_ids = {0};
  Engine engine(*model, c, nullptr);
  GenerationRequest r = request(1, 250, 7);
  EXPECT_THAT(refusal(engine, r),
              testing::AllOf(HasSubstr("prompt of 250"), HasSubstr("max_tokens = 7"), HasSubstr("limit of 256")));
  EXPECT_THAT(refusal(engine, request(1, 257, 1)), HasSubstr("limit of 256"));
  EXPECT_THAT(refusal(engine, request(1, 5, INT32_MAX)), HasSubstr("limit of 256"));
  EXPECT_THAT(refusal(engine, request(1, 50, 20)), HasSubstr("need 5 cache blocks of 16 tokens, the cache has 4"));
  EXPECT_THAT(refusal(engine, request(1, 0, 5)), HasSubstr("empty"));
  r = request(1, 5, 5);
  r.prompt_ids[3] = kVocab;
  EXPECT_THAT(refusal(engine, r), HasSubstr("token 97 at position 3"));
  r.prompt_ids[3] = -1;
  EXPECT_THAT(refusal(engine, r), HasSubstr("token -1 at position 3"));
  r = request(1, 5, 5, 2);
  r.params.temperature = 0.0;
  EXPECT_THAT(refusal(engine, r), HasSubstr("greedy"));
  r = request(1, 5, 5);
  r.params.stop = {"x"};
  EXPECT_THAT(refusal(engine, r), HasSubstr("tokenizer"));
  r = request(1, 5, 5);
  for (int32_t i = 1; i < kVocab; ++i) r.params.stop_token_ids.push_back(i);
  r.params.min_tokens = 1;
  EXPECT_THAT(refusal(engine, r), HasSubstr("every token of the vocabulary ends"));
  EXPECT_EQ(engine.num_waiting(), 0);
  EXPECT_FALSE(engine.step());
  r.params.min_tokens = 0;
  EXPECT_EQ(refusal(engine, r), "");
  EXPECT_EQ(run_all(engine).size(), 1u);
}

TEST_F(EngineTest, RefusesConfigsThatCannotWork) {
  const std::function<void(EngineConfig&)> changes[] = {
      [](EngineConfig& c) { c.block_size = 48; },
      [](EngineConfig& c) { c.block_size = 0; },
      [](EngineConfig& c) { c.block_size = 128; },
      [](EngineConfig& c) { c.max_num_seqs = 0; },
      [](EngineConfig& c) { c.max_model_len = 257; },
      [](EngineConfig& c) { c.max_num_batched_tokens = -1; },
      [](EngineConfig& c) { c.kv_cache_tokens = INT64_MAX; },
  };
  for (const auto& change : changes) {
    EngineConfig c;
    change(c);
    EXPECT_THROW(Engine(*model, c, nullptr), UsageError);
  }
  EXPECT_EQ(Engine(*model, {.max_model_len = 100}, nullptr).config().max_model_len, 100);
  // By default the longest request fits.
  Engine engine(*model, {.max_num_seqs = 1}, nullptr);
  engine.add(request(1, 255, 1));
  engine.add(request(2, 1, 255, 2));
}

TEST_F(EngineTest, NanWeightsAreAnErrorThatNamesTheRequestAndEmptiesTheEngine) {
  Engine engine(*model, {}, nullptr);
  engine.add(request(17, 5, 8, 2));
  engine.add(request(18, 5, 8));
  for (int i = 0; i < 3; ++i) engine.step();
  nn::Parameter& head = *model->find_parameter("lm_head.weight");
  const at::Tensor good = head.master().clone();
  head.master().fill_(std::numeric_limits<float>::quiet_NaN());
  head.updated();
  try {
    while (engine.step()) {
    }
    FAIL() << "sampled from NaN";
  } catch (const ValueError& e) {
    EXPECT_THAT(e.what(), testing::AllOf(HasSubstr("request 1"), HasSubstr("response token")));
  }
  EXPECT_EQ(engine.num_free_blocks(), engine.num_blocks());
  EXPECT_FALSE(engine.step());
  head.master().copy_(good);
  head.updated();
  engine.add(request(17, 5, 8, 2));
  EXPECT_EQ(run_all(engine).at({17, 1}).trajectory, run(*model, {request(17, 5, 8, 2)}).at({17, 1}).trajectory);
}

TEST(EndTokenIds, AreTheUnionAscending) {
  HfConfig hf;
  hf.eos_token_ids = {9, 2};
  GenerationConfig generation;
  generation.eos_token_ids = {2, 5};
  EXPECT_EQ(end_token_ids(hf, generation, nullptr), (std::vector<int32_t>{2, 5, 9}));
  const Tokenizer tokenizer = Tokenizer::load(WEFT_SOURCE_DIR "/models/tiny-moe");
  EXPECT_EQ(end_token_ids({}, {}, &tokenizer), std::vector<int32_t>{*tokenizer.eos_id()});
}

}  // namespace
}  // namespace weft
