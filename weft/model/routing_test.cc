// Record and replay of expert choices through the whole model.

#include "weft/model/routing.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>

#include <set>

#include "weft/base/error.h"
#include "weft/io/routing_trace.h"
#include "weft/model/test_support.h"
#include "weft/nn/autograd.h"

namespace weft {
namespace {

using namespace weft::testing;
using nn::testing::relative;
using nn::testing::same_bits;

const std::vector<Tokens> kBatch = {some_tokens(9, 1), some_tokens(1, 2), some_tokens(14, 3)};
constexpr int64_t kRows = 24;

TEST(Routing, ReplayOfARecordGivesTheSameBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    auto m = tiny_moe(dtype);
    at::NoGradGuard guard;
    LiveRouting live;
    RoutingBuffer buffer = buffer_of(*m, kRows);
    RecordRouting record(buffer);
    ReplayRouting replay(buffer);
    const at::Tensor y = hidden_of(*m, kBatch, live);
    EXPECT_TRUE(same_bits(y, hidden_of(*m, kBatch, record)));
    EXPECT_TRUE(same_bits(y, hidden_of(*m, kBatch, replay)));
    replay.check_consumed();
    EXPECT_EQ(buffer.layers, (std::vector<int32_t>{0, 2}));  // the dense layer in the middle has no rows
    for (int64_t t = 0; t < kRows; ++t)
      for (int64_t l = 0; l < 2; ++l) {
        const std::set<int32_t> ids(buffer.at(t, l), buffer.at(t, l) + 3);
        EXPECT_EQ(ids.size(), 3u);
        EXPECT_GE(*ids.begin(), 0);
        EXPECT_LT(*ids.rbegin(), 6);
      }
  }
}

TEST(Routing, GradientsOfAReplayAreThoseOfTheLiveRun) {
  auto a = tiny_moe(), b = tiny_moe();
  RoutingBuffer buffer = buffer_of(*a, kRows);
  RecordRouting record(buffer);
  ReplayRouting replay(buffer);
  const at::Tensor dy = nn::testing::normal({kRows, 24}, 5);
  nn::backward({hidden_of(*a, kBatch, record)}, {dy});
  at::Tensor y = hidden_of(*b, kBatch, replay, {.recompute = true});
  replay.check_consumed();
  nn::backward({y}, {dy});
  for (nn::Parameter* p : a->parameters()) {
    if (!p->grad().defined()) continue;  // the head
    EXPECT_TRUE(same_bits(p->grad(), b->find_parameter(p->name())->grad())) << p->name();
  }
}

TEST(Routing, RecomputeRecordsTheSameChoicesAgain) {
  auto m = tiny_moe();
  RoutingBuffer buffer = buffer_of(*m, kRows);
  RecordRouting record(buffer);
  at::Tensor y = hidden_of(*m, kBatch, record, {.recompute = true});
  const std::vector<int32_t> before = buffer.ids;
  nn::backward({y}, {at::ones_like(y)});
  EXPECT_EQ(buffer.ids, before);
}

// Other experts than the live ones: each choice moved up by one.
RoutingBuffer shifted(CausalLM& m) {
  at::NoGradGuard guard;
  RoutingBuffer buffer = buffer_of(m, kRows);
  RecordRouting record(buffer);
  hidden_of(m, kBatch, record);
  for (int32_t& id : buffer.ids) id = (id + 1) % static_cast<int32_t>(m.config().moe.num_experts);
  return buffer;
}

TEST(Routing, ReplayOfOtherExpertsChangesTheOutputAndStillTrainsTheRouter) {
  auto m = tiny_moe();
  const RoutingBuffer buffer = shifted(*m);
  const at::Tensor weights = nn::testing::normal({kRows, 24}, 6);
  auto loss = [&] {
    at::NoGradGuard guard;
    ReplayRouting replay(buffer);
    return (hidden_of(*m, kBatch, replay).to(at::kDouble) * weights.to(at::kDouble)).sum().item<double>();
  };
  {
    at::NoGradGuard guard;
    LiveRouting live;
    ReplayRouting replay(buffer);
    EXPECT_GT(relative(hidden_of(*m, kBatch, replay), hidden_of(*m, kBatch, live)), 1e-2);
  }
  ReplayRouting replay(buffer);
  nn::backward({hidden_of(*m, kBatch, replay)}, {weights});
  nn::Parameter* router = m->find_parameter("model.layers.2.mlp.gate.weight");
  ASSERT_NE(router, nullptr);
  const double largest = router->grad().abs().max().item<double>();
  EXPECT_GT(largest, 0);
  for (const int64_t i : {0, 31, 77, 140}) {
    float& w = router->master().data_ptr<float>()[i];
    const float kept = w;
    w = kept + 1e-2f;
    router->updated();
    const double up = loss();
    w = kept - 1e-2f;
    router->updated();
    const double down = loss();
    w = kept;
    router->updated();
    EXPECT_NEAR(router->grad().data_ptr<float>()[i], (up - down) / 2e-2, 1e-2 * largest) << i;
  }
}

TEST(Routing, AReplayIsConsumedOnce) {
  auto m = tiny_moe();
  at::NoGradGuard guard;
  const RoutingBuffer buffer = shifted(*m);
  ReplayRouting replay(buffer);
  EXPECT_THROW(replay.check_consumed(), InternalError);
  hidden_of(*m, kBatch, replay);
  replay.check_consumed();
  hidden_of(*m, kBatch, replay);
  EXPECT_THROW(replay.check_consumed(), InternalError);
}

TEST(Routing, RowsOfAnotherBatchOrModelAreRefused) {
  auto m = tiny_moe();
  at::NoGradGuard guard;
  const RoutingBuffer buffer = shifted(*m);
  ReplayRouting replay(buffer);
  EXPECT_THROW(hidden_of(*m, {kBatch[0]}, replay), InternalError);
  auto other = tiny_moe(at::kFloat, {.dense_layers = "[0]"});
  EXPECT_THROW(hidden_of(*other, kBatch, replay), InternalError);  // layer 1 has no rows
}

TEST(Routing, EachTokenExecutesItsRecordedExperts) {
  auto m = tiny_moe();
  at::NoGradGuard guard;
  const RoutingBuffer buffer = shifted(*m);
  auto run = [&] {
    ReplayRouting replay(buffer);
    return hidden_of(*m, kBatch, replay);
  };
  const at::Tensor before = run();
  nn::Parameter* down =
      m->find_parameter("model.layers.2.mlp.experts.down_proj");  // the last layer: nothing spreads between tokens
  for (int32_t e = 0; e < 6; ++e) {
    down->master().select(0, e).mul_(2.0);
    down->updated();
    const at::Tensor after = run();
    int64_t users = 0;
    for (int64_t t = 0; t < kRows; ++t) {
      const bool uses = std::count(buffer.at(t, 1), buffer.at(t, 1) + 3, e) > 0;
      users += uses;
      EXPECT_EQ(same_bits(before[t], after[t]), !uses) << "token " << t << ", expert " << e;
    }
    EXPECT_GT(users, 0);
    EXPECT_LT(users, kRows);
    down->master().select(0, e).div_(2.0);
    down->updated();
  }
}

TEST(Routing, SequencesChooseAloneWhatTheyChooseTogether) {
  auto m = tiny_moe();
  at::NoGradGuard guard;
  RoutingBuffer all = buffer_of(*m, kRows);
  RecordRouting together(all);
  hidden_of(*m, kBatch, together);
  std::vector<int32_t> joined;
  for (const Tokens& t : kBatch) {
    RoutingBuffer one = buffer_of(*m, static_cast<int64_t>(t.size()));
    RecordRouting alone(one);
    hidden_of(*m, {t}, alone);
    joined.insert(joined.end(), one.ids.begin(), one.ids.end());
  }
  EXPECT_EQ(joined, all.ids);
}

TEST(Routing, ThreeHundredExpertsSurviveATrace) {
  auto m = tiny_moe(at::kFloat, {.experts = 300, .top_k = 3, .layers = 1, .dense_layers = "[]"});
  const std::vector<int32_t> chosen = {299, 255, 256};  // slot order is kept
  RoutingTrace trace(5, {0}, 3, 300);
  for (int64_t r = 0; r < 5; ++r) trace.set(r, 0, chosen);
  EXPECT_TRUE(trace.is_wide());
  const RoutingTrace read = RoutingTrace::from_npy(trace.to_npy(), {0}, 1, 300, "test");
  RoutingBuffer buffer = buffer_of(*m, 5);
  for (int64_t r = 0; r < 5; ++r) read.get(r, 0, {buffer.at(r, 0), 3});
  ReplayRouting replay(buffer);
  at::Tensor y = hidden_of(*m, {some_tokens(5, 9)}, replay);
  nn::backward({y}, {nn::testing::normal({5, 24}, 3)});
  const at::Tensor g = m->find_parameter("model.layers.0.mlp.experts.gate_up_proj")->grad().abs().sum({1, 2});
  for (int32_t e = 0; e < 300; ++e) EXPECT_EQ(g[e].item<float>() > 0, std::count(chosen.begin(), chosen.end(), e) > 0) << e;
}

}  // namespace
}  // namespace weft
