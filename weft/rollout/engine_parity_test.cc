// The same request gives the same bits in any company, and the bits of the trainer.

#include <ATen/core/Tensor.h>
#include <ATen/ops/log_softmax.h>
#include <gtest/gtest.h>

#include <bit>
#include <numeric>
#include <set>

#include "weft/base/error.h"
#include "weft/rollout/engine_test_support.h"

namespace weft {
namespace {

using namespace test;

// All sampling options, groups, prompts of one token to more than a block, on and off block boundaries.
std::vector<GenerationRequest> mixed_requests() {
  std::vector<GenerationRequest> r = {request(0, 1, 9),   request(1, 70, 6, 3), request(2, 16, 12, 2),
                                      request(3, 64, 20), request(4, 48, 5),    request(5, 20, 8, 4)};
  r[0].params.temperature = 1.7;
  r[1].params.temperature = 0.6;
  r[1].params.top_p = 0.9;
  r[2].params.top_k = 7;
  r[2].params.logit_bias = {{3, 4.0f}, {50, -100.0f}};
  r[3].params.min_p = 0.05;
  r[3].params.min_tokens = 10;
  r[3].params.stop_token_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  r[4].params.temperature = 0.0;
  r[5].params.temperature = 1.7;
  r[5].params.top_k = 40, r[5].params.top_p = 0.8, r[5].params.min_p = 0.01;
  r[5].params.raw_logprobs = true;
  r[5].prompt_ids.assign(r[1].prompt_ids.begin(), r[1].prompt_ids.begin() + 20);  // a common prefix
  return r;
}

void expect_same(const GeneratedSample& a, const GeneratedSample& b) {
  EXPECT_EQ(a.trajectory, b.trajectory);  // tokens, log-probs, kept sets, routes, and what ended it
  EXPECT_EQ(a.raw_log_probs, b.raw_log_probs);
}

class EngineParity : public testing::TestWithParam<std::tuple<Kind, at::ScalarType>> {
 protected:
  EngineParity() : model(small_model(std::get<0>(GetParam()), std::get<1>(GetParam()))) {}
  EngineConfig config() const {
    EngineConfig c;
    c.record_routing = true;
    c.end_ids = {11, 95};
    return c;
  }
  // Each request alone in an engine of its own, on one thread.
  Samples alone(const std::vector<GenerationRequest>& requests) {
    Threads one(1);
    Samples out;
    for (const GenerationRequest& r : requests) out.merge(run(*model, {r}, config()));
    return out;
  }
  std::unique_ptr<CausalLM> model;
};

TEST_P(EngineParity, SameBitsInAnyCompanyChunkingBlockSizeAndThreads) {
  const std::vector<GenerationRequest> requests = mixed_requests();
  const Samples expected = alone(requests);
  ASSERT_EQ(expected.size(), 12u);
  for (uint64_t mix = 0; mix < 10; ++mix) {
    const CounterRng rng(mix);
    uint64_t counter = 0;
    auto pick = [&](std::vector<int64_t> of) { return of[rng.below(counter++, of.size())]; };
    EngineConfig c = config();
    c.block_size = pick({16, 32, 64, 4});
    c.max_num_batched_tokens = pick({1, 2, 3, 5, 8, 13, 17, 33, 64});
    c.max_num_seqs = pick({1, 2, 5, 32});
    c.kv_cache_tokens = pick({192, 256, 1000});
    Threads threads(static_cast<int>(pick({1, 2, 4})));
    Engine engine(*model, c, nullptr);
    std::vector<size_t> order(requests.size());
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(counter++, i)]);
    Samples got;
    size_t sent = 0;
    for (size_t i : order) {
      if (pick({0, 0, 1}) == 1) continue;  // not all of them come
      engine.add(requests[i]);
      sent += static_cast<size_t>(requests[i].params.n);
      for (int64_t steps = pick({0, 1, 4}); steps > 0; --steps) engine.step();
      collect(engine, got);
    }
    got = run_all(engine, std::move(got));
    ASSERT_EQ(got.size(), sent) << "mix " << mix;
    for (const auto& [key, sample] : got) expect_same(sample, expected.at(key));
    EXPECT_EQ(engine.num_free_blocks(), engine.num_blocks());
    if (HasFailure()) FAIL() << "mix " << mix;
  }
}

TEST_P(EngineParity, EqualsThePackedForwardOfTheTrainer) {
  const std::vector<GenerationRequest> requests = mixed_requests();
  EngineConfig c = config();
  c.block_size = 16, c.max_num_batched_tokens = 11;
  const Samples samples = run(*model, requests, c);
  for (const bool together : {true, false}) {
    std::map<RequestId, std::vector<const Trajectory*>> batches;
    for (const auto& [key, s] : samples)
      if (key.first != 4)  // greedy: not a policy's
        batches[together && key.first != 2 ? 0 : key.first].push_back(&s.trajectory);
    int64_t tokens = 0;
    for (const auto& [id, batch] : batches) {
      kernels::LogitBias bias;
      for (const auto& [token, value] : requests[static_cast<size_t>(id)].params.logit_bias)
        bias.ids.push_back(token), bias.values.push_back(value);
      const TrainerView view = trainer_view(*model, batch, bias.ids.empty() ? nullptr : &bias);
      for (size_t i = 0; i < batch.size(); ++i) {
        const Trajectory& t = *batch[i];
        validate_trajectory(t);
        ASSERT_EQ(view.log_probs[i].size(), t.rollout_log_probs.size());
        for (size_t j = 0; j < view.log_probs[i].size(); ++j, ++tokens)
          EXPECT_EQ(std::bit_cast<uint32_t>(view.log_probs[i][j]), std::bit_cast<uint32_t>(t.rollout_log_probs[j]))
              << t.name() << " token " << j;
        if (!model->config().has_moe()) {
          EXPECT_FALSE(t.routing.has_value());
          continue;
        }
        t.routing->validate(t.num_tokens() - 1, model->config().moe_layer_ids(), t.name());
        std::vector<int32_t> recorded;
        for (int64_t row = 0; row < t.routing->num_rows(); ++row)
          for (int64_t l = 0; l < t.routing->num_layers(); ++l)
            for (int32_t e : t.routing->get(row, l)) recorded.push_back(e);
        EXPECT_EQ(recorded, view.routes[i]);
      }
    }
    EXPECT_GT(tokens, 60);
  }
}

TEST_P(EngineParity, GreedyIsTheArgMaxOfTheFullForward) {
  GenerationRequest r = request(9, 12, 24);
  r.params.temperature = 0.0;
  r.params.top_k = 1, r.params.top_p = 0.1;  // change nothing
  const Trajectory t = run(*model, {r}, {.max_num_batched_tokens = 5}).begin()->second.trajectory;
  std::vector<int32_t> ids = t.prompt_ids;
  ids.insert(ids.end(), t.response_ids.begin(), t.response_ids.end());
  const at::Tensor logits = full_logits(*model, ids);
  const at::Tensor log_probs = at::log_softmax(logits.to(at::kDouble), 1);
  for (size_t j = 0; j < t.response_ids.size(); ++j) {
    const int64_t row = static_cast<int64_t>(t.prompt_ids.size() + j) - 1;
    EXPECT_EQ(t.response_ids[j], logits[row].argmax().item<int64_t>());
    EXPECT_NEAR(t.rollout_log_probs[j], log_probs[row][t.response_ids[j]].item<double>(), 1e-5);
  }
  EXPECT_EQ(t.temperature, 0.0);
  EXPECT_TRUE(t.kept.empty());
}

TEST_P(EngineParity, SixteenSamplesDifferAndComeAgain) {
  GenerationRequest r = request(3, 21, 12, 16);
  const Samples first = run(*model, {r}, {.block_size = 16});
  Samples again = run(*model, {request(8, 30, 15, 2), r, request(2, 3, 4)},
                      {.max_num_seqs = 5, .max_num_batched_tokens = 7, .block_size = 32});
  std::set<std::vector<int32_t>> distinct;
  for (const auto& [key, s] : first) {
    distinct.insert(s.trajectory.response_ids);
    expect_same(again.at(key), s);
  }
  EXPECT_EQ(distinct.size(), 16u);
  // A smaller group is the beginning of a larger one; another seed is another group.
  r.params.n = 3;
  for (const auto& [key, s] : run(*model, {r})) expect_same(s, first.at(key));
  r.seed += 1;
  for (const auto& [key, s] : run(*model, {r})) EXPECT_NE(s.trajectory.response_ids, first.at(key).trajectory.response_ids);
}

std::string case_name(const testing::TestParamInfo<std::tuple<Kind, at::ScalarType>>& p) {
  const char* kinds[] = {"Dense", "Moe", "OverEncoded"};
  return std::string(kinds[static_cast<int>(std::get<0>(p.param))]) + (std::get<1>(p.param) == at::kFloat ? "Fp32" : "Bf16");
}

const auto kModels =
    testing::Combine(testing::Values(Kind::kDense, Kind::kMoe, Kind::kOverEncoded), testing::Values(at::kFloat, at::kBFloat16));
INSTANTIATE_TEST_SUITE_P(Models, EngineParity, kModels, case_name);

}  // namespace
}  // namespace weft
