#include "weft/kernels/moe.h"

#include <algorithm>
#include <numeric>

#include "weft/base/math.h"
#include "weft/kernels/moe_reference.h"
#include "weft/kernels/test_support.h"

namespace weft::kernels {
namespace {

using testing::bits_equal;
using testing::kBoth;
using testing::normal_floats;
using testing::Owned;

class Moe : public testing::Kernels {};

std::vector<RouterParams> all_params(int64_t k, const float* bias) {
  std::vector<RouterParams> out;
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid})
    for (const bool normalize : {true, false})
      for (const float scale : {1.0f, 2.5f})
        out.push_back({score, k, normalize, scale, score == RouterScore::kSigmoid ? bias : nullptr});
  return out;
}

std::vector<int32_t> random_ids(int64_t tokens, int64_t experts, int64_t k) {
  const std::vector<float> logits = normal_floats(tokens * experts, 8);
  std::vector<int32_t> ids(static_cast<size_t>(tokens * k));
  router_select(logits.data(), tokens, experts, {RouterScore::kSoftmax, k}, ids.data());
  return ids;
}

TEST_F(Moe, RouterHasTheReferenceBits) {
  for (const int64_t tokens : {0, 1, 70})
    for (const int64_t experts : {4, 60, 128}) {
      std::vector<float> logits = normal_floats(tokens * experts, 1, 2.0f);
      for (float& l : logits) l = std::round(l * 4.0f) / 4.0f;  // many ties
      const std::vector<float> bias = normal_floats(experts, 2, 0.1f);
      for (const RouterParams& params : all_params(4, bias.data())) {
        const auto pairs = static_cast<size_t>(tokens * params.top_k);
        std::vector<int32_t> ids(pairs), ids2(pairs);
        std::vector<float> gates(pairs), gates2(pairs);
        reference::router_select(logits.data(), tokens, experts, params, ids.data());
        reference::router_gates(logits.data(), tokens, experts, params, ids.data(), gates.data());
        everywhere([&] {
          router_select(logits.data(), tokens, experts, params, ids2.data());
          router_gates(logits.data(), tokens, experts, params, ids.data(), gates2.data());
          EXPECT_EQ(ids, ids2);
          EXPECT_TRUE(bits_equal(gates, gates2));
        });
      }
    }
}

TEST_F(Moe, TiesGoToTheLowerExpert) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, 2.0f, 2.0f};
  std::vector<int32_t> ids(4);
  router_select(logits.data(), 1, 6, {RouterScore::kSoftmax, 4}, ids.data());
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 3, 2, 4}));
}

TEST_F(Moe, BiasChangesTheChoiceButNotTheGate) {
  const std::vector<float> logits = {2.0f, 1.0f, 0.0f}, bias = {-1.0f, 0.0f, 0.0f};
  const RouterParams params{RouterScore::kSigmoid, 1, false, 1.0f, bias.data()};
  int32_t id = -1;
  float gate = 0;
  router_select(logits.data(), 1, 3, params, &id);
  router_gates(logits.data(), 1, 3, params, &id, &gate);
  EXPECT_EQ(id, 1);
  EXPECT_NEAR(gate, 1.0 / (1.0 + det_exp(-1.0)), 1e-6);
}

TEST_F(Moe, GateGradientsMatchFiniteDifferences) {
  const int64_t tokens = 3, experts = 6, k = 3;
  const std::vector<float> logits = normal_floats(tokens * experts, 1), dgates = normal_floats(tokens * k, 2);
  for (const RouterParams& params : all_params(k, nullptr)) {
    std::vector<int32_t> ids(tokens * k);
    std::vector<float> gates(tokens * k);
    router_select(logits.data(), tokens, experts, params, ids.data());
    router_gates(logits.data(), tokens, experts, params, ids.data(), gates.data());
    const std::vector<float> start = normal_floats(tokens * experts, 3);
    std::vector<float> d = start;
    router_gates_backward(dgates.data(), logits.data(), gates.data(), tokens, experts, params, ids.data(), d.data());
    const auto loss = [&](const std::vector<double>& l) {
      double total = 0;
      for (size_t t = 0; t < tokens; ++t) {
        double all = 0, chosen = 0, terms[8];
        for (size_t e = 0; e < experts; ++e) all += det_exp(l[t * experts + e]);
        for (size_t j = 0; j < k; ++j) {
          const double x = l[t * experts + static_cast<size_t>(ids[t * k + j])];
          terms[j] = params.score == RouterScore::kSoftmax ? det_exp(x) : 1 / (1 + det_exp(-x));
          chosen += terms[j];
        }
        const double divisor = params.normalize ? chosen : params.score == RouterScore::kSoftmax ? all : 1.0;
        for (size_t j = 0; j < k; ++j) total += dgates[t * k + j] * params.scale * terms[j] / divisor;
      }
      return total;
    };
    for (size_t i = 0; i < logits.size(); ++i) {
      std::vector<double> up(logits.begin(), logits.end()), down = up;
      up[i] += 1e-5;
      down[i] -= 1e-5;
      EXPECT_NEAR(d[i] - start[i], (loss(up) - loss(down)) / 2e-5, 2e-6);
    }
    everywhere([&] {
      std::vector<float> d2 = start;
      router_gates_backward(dgates.data(), logits.data(), gates.data(), tokens, experts, params, ids.data(), d2.data());
      EXPECT_TRUE(bits_equal(d, d2));
    });
  }
}

TEST_F(Moe, PermutationIsAStableSort) {
  const std::vector<int32_t> ids = random_ids(50, 8, 2);
  const Permutation p = make_permutation(ids, 2, 8);
  std::vector<int32_t> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  std::stable_sort(expected.begin(), expected.end(),
                   [&](int32_t a, int32_t b) { return ids[static_cast<size_t>(a)] < ids[static_cast<size_t>(b)]; });
  EXPECT_EQ(p.order, expected);
  for (size_t r = 0; r < 100; ++r) EXPECT_EQ(p.position[static_cast<size_t>(p.order[r])], static_cast<int32_t>(r));
  for (int32_t e = 0; e < 8; ++e)
    EXPECT_EQ(p.offsets[static_cast<size_t>(e) + 1] - p.offsets[static_cast<size_t>(e)], std::count(ids.begin(), ids.end(), e));
  EXPECT_EQ(make_permutation({}, 2, 3).offsets, (std::vector<int64_t>{0, 0, 0, 0}));
}

TEST_F(Moe, PermuteAndItsTransposeMoveRows) {
  for (const int64_t tokens : {0, 37})
    for (const DType dtype : kBoth) {
      const int64_t k = 3, h = 45;
      const Permutation p = make_permutation(random_ids(tokens, 6, k), k, 6);
      const Owned x(dtype, tokens, h, 1), d(dtype, tokens * k, h, 2);
      everywhere([&] {
        Owned rows(dtype, tokens * k, h);
        permute_rows(x.c(), p, k, rows.m());
        std::vector<float> dx(static_cast<size_t>(tokens * h));
        permute_rows_backward(d.c(), p, k, dx.data());
        for (int64_t pair = 0; pair < tokens * k; ++pair)
          for (int64_t c = 0; c < h; ++c) ASSERT_EQ(rows.at(p.position[static_cast<size_t>(pair)], c), x.at(pair / k, c));
        for (int64_t t = 0; t < tokens; ++t)
          for (int64_t c = 0; c < h; ++c) {
            float sum = 0.0f;
            for (int64_t j = 0; j < k; ++j) sum += d.at(p.position[static_cast<size_t>(t * k + j)], c);
            ASSERT_EQ(dx[static_cast<size_t>(t * h + c)], sum);
          }
      });
    }
}

TEST_F(Moe, CombineHasTheReferenceBits) {
  for (const int64_t tokens : {0, 1, 33})
    for (const DType dtype : kBoth) {
      const int64_t k = 4, h = 70;
      const Permutation p = make_permutation(random_ids(tokens, 8, k), k, 8);
      const Owned out(dtype, tokens * k, h, 1);
      const std::vector<float> gates = normal_floats(tokens * k, 2), dy = normal_floats(tokens * h, 3);
      std::vector<float> y(static_cast<size_t>(tokens * h)), dg(gates.size());
      Owned dout(dtype, tokens * k, h);
      reference::combine_forward(out.c(), p, k, gates.data(), y.data());
      reference::combine_backward(dy.data(), out.c(), p, k, gates.data(), dout.m(), dg.data());
      everywhere([&] {
        std::vector<float> y2(y.size()), dg2(dg.size());
        Owned dout2(dtype, tokens * k, h);
        combine_forward(out.c(), p, k, gates.data(), y2.data());
        combine_backward(dy.data(), out.c(), p, k, gates.data(), dout2.m(), dg2.data());
        EXPECT_TRUE(bits_equal(y, y2));
        EXPECT_TRUE(bits_equal(dg, dg2));
        EXPECT_TRUE(bits_equal(dout, dout2));
      });
      // Inverse: slots added from the last one down give other bits.
      if (tokens < 33) continue;
      int different = 0;
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t c = 0; c < h; ++c) {
          float acc = 0.0f;
          for (int64_t j = k - 1; j >= 0; --j) {
            const auto pair = static_cast<size_t>(t * k + j);
            acc += gates[pair] * out.at(p.position[pair], c);
          }
          different += acc != y[static_cast<size_t>(t * h + c)];
        }
      EXPECT_GT(different, 100);
    }
}

}  // namespace
}  // namespace weft::kernels
