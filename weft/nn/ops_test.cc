// Every op: kernels against the ATen compositions (libtorch's own autograd), and against finite differences.

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <algorithm>
#include <numeric>

#include "weft/base/error.h"
#include "weft/nn/activation.h"
#include "weft/nn/attention.h"
#include "weft/nn/embedding.h"
#include "weft/nn/head.h"
#include "weft/nn/linear.h"
#include "weft/nn/moe.h"
#include "weft/nn/norm.h"
#include "weft/nn/rope.h"
#include "weft/nn/test_support.h"

namespace weft::nn {
namespace {

using namespace testing;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16};
double tolerance(at::ScalarType t) { return t == at::kFloat ? kFp32 : kBf16; }

TEST(Linear, KernelsMatchCompositions) {
  for (const at::ScalarType dtype : kDtypes)
    for (const int64_t rows : {0, 1, 3, 70})
      for (const kernels::Chain chain : {kernels::Chain::kSingle, kernels::Chain::kLeaves})
        for (const bool with_bias : {false, true}) {
          auto w = parameter(normal({19, 37}, 1, 0.3f), dtype), b = parameter(normal({19}, 2), dtype, Precision::kFp32);
          OpCase c{{normal({rows, 37}, 3).to(dtype)}, {w.get()}, {}};
          if (with_bias) c.params.push_back(b.get());
          c.op = [&](const auto& in) -> Grads { return {linear(in[0], *w, with_bias ? b.get() : nullptr, at::kFloat, chain)}; };
          expect_kernels_match_compositions(c, tolerance(dtype));
          c.op = [&](const auto& in) -> Grads { return {linear(in[0], *w, with_bias ? b.get() : nullptr, dtype, chain)}; };
          expect_kernels_match_compositions(c, tolerance(dtype));
        }
}

TEST(Linear, FiniteDifferences) {
  for (const kernels::Chain chain : {kernels::Chain::kSingle, kernels::Chain::kLeaves}) {
    auto w = parameter(normal({5, 21}, 1), at::kFloat), b = parameter(normal({5}, 2), at::kFloat, Precision::kFp32);
    expect_finite_differences({{normal({4, 21}, 3)}, {w.get(), b.get()}, [&](const auto& in) -> Grads {
                                 return {linear(in[0], *w, b.get(), at::kFloat, chain)};
                               }});
  }
}

TEST(Elementwise, AddScaleAndRounding) {
  OpCase c{{normal({3, 5}, 1), normal({3, 5}, 2)}, {}, [](const auto& in) -> Grads {
             return {nn::add(in[0], scale(in[1], 0.25f)), to_dtype(in[1], at::kBFloat16)};
           }};
  expect_kernels_match_compositions(c, 0.0);
}

TEST(RmsNorm, KernelsMatchCompositions) {
  for (const at::ScalarType dtype : kDtypes)
    for (const int64_t rows : {0, 1, 5, 67}) {
      auto w = parameter(normal({24}, 1), at::kFloat, Precision::kFp32);
      // Rows of 48 with a weight of 24: two heads a row.
      OpCase c{{normal({rows, 48}, 2)}, {w.get()}, [&](const auto& in) -> Grads {
                 return {rms_norm(in[0], *w, 1e-6f, dtype, false).rounded};
               }};
      expect_kernels_match_compositions(c, tolerance(dtype));
      c.op = [&](const auto& in) -> Grads {
        const Normed n = rms_norm(in[0], *w, 1e-6f, dtype, true);
        if (dtype == at::kFloat) return {n.exact};
        return {n.rounded, n.exact};
      };
      expect_kernels_match_compositions(c, tolerance(dtype));
    }
}

TEST(RmsNorm, OneOfTwoOutputsMayHaveNoGradient) {
  auto w = parameter(normal({24}, 1), at::kFloat, Precision::kFp32);
  for (const bool exact : {false, true}) {
    OpCase c{{normal({5, 24}, 2)}, {w.get()}, [&](const auto& in) -> Grads {
               const Normed n = rms_norm(in[0], *w, 1e-6f, at::kBFloat16, true);
               return {exact ? n.exact : n.rounded};
             }};
    expect_kernels_match_compositions(c, kBf16);
  }
}

TEST(RmsNorm, FiniteDifferences) {
  auto w = parameter(normal({8}, 1), at::kFloat, Precision::kFp32);
  expect_finite_differences({{normal({3, 16}, 2)}, {w.get()}, [&](const auto& in) -> Grads {
                               return {rms_norm(in[0], *w, 1e-5f, at::kFloat, true).exact};
                             }});
}

RopeTable some_rope(const std::vector<int32_t>& positions, int64_t half) {
  at::Tensor p = at::empty({static_cast<int64_t>(positions.size())}, at::kInt);
  std::copy(positions.begin(), positions.end(), p.data_ptr<int32_t>());
  std::vector<float> inv;
  for (int64_t i = 0; i < half; ++i) inv.push_back(std::pow(100.0f, -static_cast<float>(i) / static_cast<float>(half)));
  return rope_table(p, inv, 1.25, at::kCPU);
}

TEST(Rope, KernelsMatchCompositionsAndFiniteDifferences) {
  const RopeTable table = some_rope({0, 1, 200, 0, 7}, 6), none = some_rope({}, 6);
  for (const at::ScalarType dtype : kDtypes) {
    expect_kernels_match_compositions(
        {{normal({5, 36}, 1)}, {}, [&](const auto& in) -> Grads { return {rope(in[0], 3, table, dtype)}; }}, tolerance(dtype));
    expect_kernels_match_compositions(
        {{normal({0, 36}, 1)}, {}, [&](const auto& in) -> Grads { return {rope(in[0], 3, none, dtype)}; }}, 0);
  }
  expect_finite_differences(
      {{normal({5, 36}, 1)}, {}, [&](const auto& in) -> Grads { return {rope(in[0], 3, table, at::kFloat)}; }});
}

TEST(Rope, RowsKeepTheirLengthTimesTheFactor) {
  const RopeTable table = some_rope({3, 90}, 6);
  at::Tensor x = normal({2, 12}, 5), y = rope(x, 1, table, at::kFloat);
  EXPECT_LE(relative(y.norm(2, 1), x.norm(2, 1) * 1.25), 1e-6);
}

TEST(Swiglu, KernelsMatchCompositionsAndFiniteDifferences) {
  for (const at::ScalarType dtype : kDtypes)
    for (const int64_t rows : {0, 1, 9}) {
      const OpCase two{{normal({rows, 23}, 1, 3), normal({rows, 23}, 2)}, {}, [&](const auto& in) -> Grads {
                         return {swiglu(in[0], in[1], dtype)};
                       }};
      expect_kernels_match_compositions(two, tolerance(dtype));
      const OpCase fused{{normal({rows, 46}, 1, 3)}, {}, [&](const auto& in) -> Grads { return {swiglu_fused(in[0], dtype)}; }};
      expect_kernels_match_compositions(fused, tolerance(dtype));
    }
  expect_finite_differences(
      {{normal({3, 10}, 1)}, {}, [&](const auto& in) -> Grads { return {swiglu_fused(in[0], at::kFloat)}; }});
}

TEST(Attention, KernelsMatchCompositions) {
  // One sequence, several with one of a token and an empty one, one longer than a block of keys, none.
  const std::vector<std::vector<int64_t>> batches = {{0, 7}, {0, 1, 1, 6, 19}, {0, 70, 75}, {0}, {0, 0}};
  for (const at::ScalarType dtype : kDtypes)
    for (const auto& offsets : batches)
      for (const int64_t kv : {1, 2, 4}) {
        const int64_t t = offsets.back();
        OpCase c{
            {normal({t, 4 * 10}, 1).to(dtype), normal({t, kv * 10}, 2).to(dtype), normal({t, kv * 10}, 3).to(dtype)}, {}, {}};
        c.op = [&](const auto& in) -> Grads {
          return {PackedAttention({4, kv, 10, 0.3f}, offsets).attend(0, in[0], in[1], in[2])};
        };
        expect_kernels_match_compositions(c, tolerance(dtype));
      }
}

TEST(Attention, FiniteDifferences) {
  expect_finite_differences({{normal({7, 16}, 1), normal({7, 8}, 2), normal({7, 8}, 3)}, {}, [&](const auto& in) -> Grads {
                               return {PackedAttention({4, 2, 4, 0.5f}, {0, 3, 7}).attend(0, in[0], in[1], in[2])};
                             }});
}

TEST(Embedding, KernelsMatchCompositions) {
  for (const at::ScalarType dtype : kDtypes) {
    auto table = parameter(normal({11, 6}, 1), dtype);
    at::Tensor ids = at::empty({5}, at::kInt);
    const int32_t values[] = {3, 10, 3, 0, 3};
    std::copy(std::begin(values), std::end(values), ids.data_ptr<int32_t>());
    expect_kernels_match_compositions({{}, {table.get()}, [&](const auto&) -> Grads { return {embedding(ids, *table)}; }},
                                      tolerance(dtype));
    expect_kernels_match_compositions(
        {{}, {table.get()}, [&](const auto&) -> Grads { return {embedding(ids.narrow(0, 0, 0), *table)}; }}, 0);
    for (const int32_t bad : {-1, 11}) {
      at::Tensor wrong = ids.clone();
      wrong.data_ptr<int32_t>()[2] = bad;
      EXPECT_THROW(embedding(wrong, *table), ValueError);
      ForcedCompositions guard;
      EXPECT_THROW(embedding(wrong, *table), ValueError);
    }
  }
}

struct MoeCase {
  int64_t tokens, experts, k;
  bool normalize;
  kernels::RouterScore score;
  int32_t only = -1;  // all slots that can go to experts from here on
};

void check_moe(const MoeCase& m, at::ScalarType dtype, bool differences) {
  SCOPED_TRACE(fmt::format("{} tokens, {} experts, k = {}, normalise {}, dtype {}", m.tokens, m.experts, m.k, m.normalize,
                           c10::toString(dtype)));
  const int64_t h = 12, width = 7;
  auto gu = parameter(normal({m.experts, 2 * width, h}, 1, 0.4f), dtype),
       down = parameter(normal({m.experts, h, width}, 2, 0.4f), dtype);
  auto router = parameter(normal({m.experts, h}, 3, 0.4f), dtype, Precision::kFp32);
  kernels::RouterParams params;
  params.top_k = m.k, params.normalize = m.normalize, params.score = m.score, params.scale = 1.5f;
  at::Tensor x = normal({m.tokens, h}, 4);
  at::Tensor ids = router_select(router_logits(x, *router).detach(), params);
  if (m.only >= 0)
    for (int64_t i = 0; i < ids.numel(); ++i) ids.data_ptr<int32_t>()[i] = m.only + static_cast<int32_t>(i % m.k);
  const OpCase c{{x}, {router.get(), gu.get(), down.get()}, [&](const auto& in) -> Grads {
                   at::Tensor gates = router_gates(router_logits(in[0], *router), ids, params);
                   return {moe_experts(to_dtype(in[0], dtype), gates, ids, *gu, *down)};
                 }};
  expect_kernels_match_compositions(c, tolerance(dtype));
  if (differences) expect_finite_differences(c, 6);
  // Experts without tokens get exact zeros.
  const OpResult r = run_op(c);
  for (int64_t e = 0; e < m.experts; ++e)
    if (!(ids == e).any().item<bool>()) {
      EXPECT_EQ(r.param_grads[1].select(0, e).abs().sum().item<float>(), 0.0f);
      EXPECT_EQ(r.param_grads[2].select(0, e).abs().sum().item<float>(), 0.0f);
    }
}

TEST(Moe, KernelsMatchCompositionsAndFiniteDifferences) {
  using enum kernels::RouterScore;
  for (const at::ScalarType dtype : kDtypes) {
    const bool differences = dtype == at::kFloat;
    for (const auto score : {kSoftmax, kSigmoid}) {
      check_moe({9, 5, 2, true, score}, dtype, differences);
      check_moe({9, 5, 3, false, score}, dtype, differences);
    }
    check_moe({6, 5, 1, false, kSoftmax}, dtype, differences);
    check_moe({5, 40, 3, true, kSoftmax}, dtype, false);      // most experts have no token
    check_moe({33, 4, 1, false, kSoftmax, 2}, dtype, false);  // all tokens on one expert
    check_moe({8, 4, 2, true, kSoftmax, 1}, dtype, false);    // all tokens on two
    check_moe({0, 4, 2, true, kSoftmax}, dtype, false);
    check_moe({1, 4, 4, true, kSoftmax}, dtype, false);  // k = E
  }
}

TEST(Moe, OneChosenExpertThatIsNormalisedHasAGateOfOneAndNoRouterGradient) {
  auto router = parameter(normal({4, 6}, 1), at::kFloat, Precision::kFp32);
  kernels::RouterParams params;
  params.top_k = 1;
  const OpCase c{{normal({5, 6}, 2)}, {router.get()}, [&](const auto& in) -> Grads {
                   at::Tensor logits = router_logits(in[0], *router);
                   return {router_gates(logits, router_select(logits, params), params)};
                 }};
  const OpResult r = run_op(c);
  EXPECT_TRUE(at::equal(r.outputs[0], at::ones({5, 1})));
  EXPECT_EQ(r.param_grads[0].abs().max().item<float>(), 0.0f);
}

// Rows with temperatures, a bias, kept sets, and all of them.
std::shared_ptr<HeadRows> head_rows(int64_t rows, int32_t vocab) {
  auto out = std::make_shared<HeadRows>();
  for (int64_t r = 0; r < rows; ++r) {
    kernels::HeadRow row;
    row.target = static_cast<int32_t>((r * 13 + 2) % vocab);
    row.inv_temperature = r % 3 == 0 ? 1.0f : 1.0f / 0.7f;
    if (r % 4 >= 2) {
      auto kept = std::make_shared<kernels::KeptTokens>();
      kept->all = false;
      for (int32_t i = 0; i < vocab; ++i)
        if (i == row.target || i % 5 == 1) kept->ids.push_back(i);
      row.kept = kept.get();
      out->owners.push_back(kept);
    }
    if (r % 2 == 1) {
      auto bias = std::make_shared<kernels::LogitBias>();
      bias->ids = {1, 6, vocab - 1};
      bias->values = {2.0f, -1.5f, 0.25f};
      row.bias = bias.get();
      out->owners.push_back(bias);
    }
    out->rows.push_back(row);
  }
  return out;
}

TEST(Head, KernelsMatchCompositions) {
  for (const at::ScalarType dtype : kDtypes)
    for (const int64_t rows : {0, 1, 13})
      for (const bool entropy : {false, true}) {
        auto w = parameter(normal({53, 14}, 1, 0.4f), dtype);
        const auto asked = head_rows(rows, 53);
        expect_kernels_match_compositions({{normal({rows, 14}, 2).to(dtype)},
                                           {w.get()},
                                           [&](const auto& in) -> Grads {
                                             HeadOutput o = head_log_probs(in[0], *w, asked, entropy);
                                             if (!entropy) return {o.log_probs};
                                             return {o.log_probs, o.entropy};
                                           }},
                                          tolerance(dtype));
      }
}

TEST(Head, FiniteDifferences) {
  auto w = parameter(normal({29, 8}, 1, 0.5f), at::kFloat);
  const auto asked = head_rows(8, 29);
  for (const int which : {0, 1, 2})
    expect_finite_differences({{normal({8, 8}, 2)},
                               {w.get()},
                               [&](const auto& in) -> Grads {
                                 HeadOutput o = head_log_probs(in[0], *w, asked, which != 0);
                                 if (which == 0) return {o.log_probs};
                                 if (which == 1) return {o.entropy};
                                 return {o.log_probs, o.entropy};
                               }},
                              8);
}

TEST(Head, ATargetOutsideTheVocabularyIsOurBug) {
  auto w = parameter(normal({5, 4}, 1), at::kFloat);
  auto rows = std::make_shared<HeadRows>();
  rows->rows.push_back({5, 1.0f, nullptr, nullptr});
  EXPECT_THROW(head_log_probs(normal({1, 4}, 2), *w, rows, false), InternalError);
  rows->rows[0].target = 1;
  EXPECT_THROW(head_log_probs(normal({2, 4}, 2), *w, rows, false), InternalError);
}

}  // namespace
}  // namespace weft::nn
