#include "weft/kernels/logprob.h"

#include <algorithm>

#include "weft/base/math.h"
#include "weft/kernels/logprob_reference.h"
#include "weft/kernels/test_support.h"

namespace weft::kernels {
namespace {

using testing::bits_equal;
using testing::kBoth;
using testing::normal_floats;
using testing::Owned;

class LogProb : public testing::Kernels {};

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST_F(LogProb, LogSumExpHasTheReferenceBits) {
  for (const int64_t vocab : {1, 15, 17, 129, 1000, 4097, 20000}) {
    std::vector<float> z = normal_floats(vocab, 1, 5.0f);
    for (int64_t i = 0; i < vocab / 2; ++i) z[static_cast<size_t>(i)] = i % 3 ? -kInf : z[static_cast<size_t>(i)];
    if (vocab > 1000) std::fill(z.begin(), z.begin() + vocab / 8, -kInf);  // a whole leaf removed
    const float expected = reference::log_sum_exp(z.data(), vocab);
    everywhere([&] { EXPECT_EQ(log_sum_exp(z.data(), vocab), expected); });
    double sum = 0;
    for (const float v : z) sum += det_exp(static_cast<double>(v));
    EXPECT_NEAR(expected, det_log(sum), 1e-5);
  }
}

TEST_F(LogProb, LeafTreeIsVisibleInTheBits) {
  int different = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const std::vector<float> z = normal_floats(3000, seed, 0.1f);
    different += reference::log_sum_exp(z.data(), 3000) != reference::log_sum_exp(z.data(), 3000, false);
  }
  EXPECT_GT(different, 0);
}

struct Head {
  int64_t rows, hidden, vocab;
  Owned x, w;
  KeptTokens kept;
  LogitBias bias;
  std::vector<HeadRow> targets;
  std::vector<float> logits;
  PackedWeight packed;
  Head(int64_t r, int64_t h, int64_t v, DType dtype)
      : rows(r), hidden(h), vocab(v), x(dtype, r, h, 1), w(dtype, v, h, 2, 0.3f), logits(static_cast<size_t>(r * v)) {
    kept.all = false;
    for (int32_t id = 0; id < v; id += 3) kept.ids.push_back(id);
    bias = {{0, static_cast<int32_t>(v - 1)}, {1.5f, -2.0f}};
    for (int64_t i = 0; i < r; ++i) {
      HeadRow row;
      row.target = static_cast<int32_t>(i * 6 % ((v + 2) / 3 * 3 - 2) / 3 * 3);
      if (i % 2) row.inv_temperature = 1.25f;
      if (i % 3 == 1) row.kept = &kept;
      if (i % 4 == 2) row.bias = &bias;
      targets.push_back(row);
    }
    repack();
    gemm(x.c(), packed, nullptr, view(logits.data(), r, v));
  }
  void repack() { packed.pack(w.data(), w.dtype, 1, vocab, hidden); }
};

TEST_F(LogProb, FusedHeadHasTheBitsOfTheReferenceOnGemmsLogits) {
  for (const DType dtype : kBoth)
    for (const auto& [rows, vocab] : {std::pair<int64_t, int64_t>{0, 100}, {1, 1}, {5, 700}, {120, 1111}}) {
      Head head(rows, 24, vocab, dtype);
      std::vector<float> lp(static_cast<size_t>(rows)), lse(lp.size());
      reference::logprob_forward(head.logits.data(), vocab, head.targets, lp.data(), lse.data());
      std::vector<float> first_entropy;
      everywhere([&] {
        head.repack();
        std::vector<float> lp2(lp.size()), lse2(lp.size()), entropy(lp.size());
        head_logprob_forward(head.x.c(), head.packed, head.targets, lp2.data(), entropy.data(), lse2.data());
        EXPECT_TRUE(bits_equal(lp, lp2));
        EXPECT_TRUE(bits_equal(lse, lse2));
        if (first_entropy.empty()) first_entropy = entropy;
        EXPECT_TRUE(bits_equal(entropy, first_entropy));
      });
    }
}

// A vocabulary cut over ranks at whole leaves, joined by the tree: the bits of one head. Gradients up to the order of sums.
TEST_F(LogProb, SpansOfTheVocabularyJoinToTheWhole) {
  for (const DType dtype : kBoth)
    for (const int64_t vocab : {5, 97, 1111, 5000}) {
      Head head(30, 24, vocab, dtype);
      const size_t rows = 30;
      std::vector<float> lp(rows), entropy(rows), lse(rows), dx(rows * 24), dw(static_cast<size_t>(vocab * 24));
      const std::vector<float> dlp = normal_floats(30, 3, 1.0f), dent = normal_floats(30, 4, 1.0f);
      head_logprob_forward(head.x.c(), head.packed, head.targets, lp.data(), entropy.data(), lse.data());
      head_logprob_backward(head.x.c(), head.packed, head.w.c(), head.targets, lse.data(), dlp.data(), dent.data(), view(dx.data(), 30, 24), dw.data());
      for (const int ranks : {1, 2, 4, 8}) {
        std::vector<std::vector<VocabSum>> sums(static_cast<size_t>(ranks), std::vector<VocabSum>(rows));
        std::vector<float> target_z(rows), lp2(rows), entropy2(rows), lse2(rows), dx2(rows * 24), dw2(dw.size());
        std::vector<PackedWeight> packed(static_cast<size_t>(ranks));
        const auto span_of = [&](int r) { return VocabSpan{vocab, r * kNumLeaves / ranks, kNumLeaves / ranks}; };
        const auto part = [&](int r) {
          ConstMatrix w = head.w.c();
          w.data = static_cast<const char*>(w.data) + span_of(r).begin() * 24 * dtype_bytes(dtype);
          w.rows = span_of(r).end() - span_of(r).begin();
          return w;
        };
        for (int r = 0; r < ranks; ++r) {
          packed[static_cast<size_t>(r)].pack(part(r).data, dtype, 1, part(r).rows, 24);
          head_logprob_span(head.x.c(), packed[static_cast<size_t>(r)], span_of(r), head.targets, true, sums[static_cast<size_t>(r)].data(), target_z.data());
        }
        for (size_t half = 1; half < sums.size(); half *= 2)
          for (size_t i = 0; i < sums.size(); i += 2 * half)
            for (size_t r = 0; r < rows; ++r) sums[i][r] = join_vocab_sums(sums[i][r], sums[i + half][r]);
        for (size_t r = 0; r < rows; ++r) finish_vocab_sum(sums[0][r], target_z[r], &lp2[r], &entropy2[r], &lse2[r]);
        EXPECT_TRUE(bits_equal(lp, lp2)) << vocab << " on " << ranks;
        EXPECT_TRUE(bits_equal(entropy, entropy2));
        EXPECT_TRUE(bits_equal(lse, lse2));
        for (int r = 0; r < ranks; ++r) {
          std::vector<float> own(rows * 24);
          head_logprob_span_backward(head.x.c(), packed[static_cast<size_t>(r)], part(r), span_of(r), head.targets, lse.data(), entropy.data(), dlp.data(),
                                     dent.data(), view(own.data(), 30, 24), dw2.data() + span_of(r).begin() * 24);
          for (size_t i = 0; i < own.size(); ++i) dx2[i] += own[i];
        }
        // Sums of at most 24 x 5000 terms in another order.
        for (size_t i = 0; i < dx.size(); ++i) ASSERT_NEAR(dx2[i], dx[i], 1e-5);
        for (size_t i = 0; i < dw.size(); ++i) ASSERT_NEAR(dw2[i], dw[i], 1e-5);
      }
    }
}

// The naive loss sum(dlp * log_prob + dh * entropy) in double.
double naive_loss(const Head& head, const std::vector<double>& x, const std::vector<double>& w, const std::vector<float>& dlp,
                  const std::vector<float>& dh) {
  double total = 0;
  for (size_t r = 0; r < static_cast<size_t>(head.rows); ++r) {
    const HeadRow& row = head.targets[r];
    std::vector<double> z(static_cast<size_t>(head.vocab));
    double sum = 0, weighted = 0;
    for (size_t v = 0; v < z.size(); ++v) {
      for (size_t i = 0; i < static_cast<size_t>(head.hidden); ++i)
        z[v] += x[r * static_cast<size_t>(head.hidden) + i] * w[v * static_cast<size_t>(head.hidden) + i];
      if (row.bias && v == 0) z[v] += 1.5;
      if (row.bias && v + 1 == z.size()) z[v] -= 2.0;
      z[v] *= static_cast<double>(row.inv_temperature);
      if (row.kept && v % 3 != 0) continue;
      sum += det_exp(z[v]);
      weighted += det_exp(z[v]) * z[v];
    }
    const double lse = det_log(sum);
    total += dlp[r] * (z[static_cast<size_t>(row.target)] - lse) + dh[r] * (lse - weighted / sum);
  }
  return total;
}

TEST_F(LogProb, GradientsMatchFiniteDifferences) {
  const Head head(7, 5, 40, DType::kF32);
  const std::vector<float> dlp = normal_floats(7, 5), dh = normal_floats(7, 6);
  std::vector<float> lp(7), entropy(7), lse(7), dx(35), dw(200, 0.5f);
  head_logprob_forward(head.x.c(), head.packed, head.targets, lp.data(), entropy.data(), lse.data());
  head_logprob_backward(head.x.c(), head.packed, head.w.c(), head.targets, lse.data(), dlp.data(), dh.data(),
                        view(dx.data(), 7, 5), dw.data());
  std::vector<double> x(head.x.f.begin(), head.x.f.end()), w(head.w.f.begin(), head.w.f.end());
  double total = 0;
  for (size_t r = 0; r < 7; ++r) total += dlp[r] * static_cast<double>(lp[r]) + dh[r] * static_cast<double>(entropy[r]);
  EXPECT_NEAR(total, naive_loss(head, x, w, dlp, dh), 2e-5);
  const auto slope = [&](std::vector<double>& at, size_t i) {
    const double keep = at[i];
    at[i] = keep + 1e-5;
    const double up = naive_loss(head, x, w, dlp, dh);
    at[i] = keep - 1e-5;
    const double down = naive_loss(head, x, w, dlp, dh);
    at[i] = keep;
    return (up - down) / 2e-5;
  };
  for (size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(dx[i], slope(x, i), 5e-6);
  for (size_t i = 0; i < dw.size(); i += 3) EXPECT_NEAR(dw[i] - 0.5f, slope(w, i), 5e-6);
}

TEST_F(LogProb, BackwardIsTheSameOnEveryTargetAndThreadCount) {
  for (const DType dtype : kBoth) {
    Head head(260, 5, 2100, dtype);
    const std::vector<float> dlp = normal_floats(260, 5);
    std::vector<float> lp(260), lse(260), first_dw;
    head_logprob_forward(head.x.c(), head.packed, head.targets, lp.data(), nullptr, lse.data());
    Owned first_dx(dtype, 260, 5);
    everywhere([&] {
      head.repack();
      Owned dx(dtype, 260, 5);
      std::vector<float> dw(2100 * 5, 1.0f);
      head_logprob_backward(head.x.c(), head.packed, head.w.c(), head.targets, lse.data(), dlp.data(), nullptr, dx.m(),
                            dw.data());
      if (first_dw.empty()) {
        first_dw = dw;
        first_dx = dx;
      }
      EXPECT_TRUE(bits_equal(dx, first_dx));
      EXPECT_TRUE(bits_equal(dw, first_dw));
    });
  }
}

}  // namespace
}  // namespace weft::kernels
