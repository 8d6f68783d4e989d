#include "weft/kernels/sampling.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/math.h"
#include "weft/kernels/scalar_math.h"
#include "weft/kernels/test_support.h"

namespace weft::kernels {
namespace {

using testing::normal_floats;

class Sampling : public testing::Kernels {};

std::vector<float> tied_logits(int64_t vocab, uint64_t seed) {
  std::vector<float> z = normal_floats(vocab, seed, 2.0f);
  for (float& f : z) f = std::round(f * 2.0f) / 2.0f;
  return z;
}

// The kept set by a full sort.
std::vector<int32_t> brute_kept(std::vector<float> z, const SampleParams& s) {
  for (size_t i = 0; s.bias && i < s.bias->ids.size(); ++i) z[static_cast<size_t>(s.bias->ids[i])] += s.bias->values[i];
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < static_cast<int32_t>(z.size()); ++i)
    if (std::find(s.banned.begin(), s.banned.end(), i) == s.banned.end()) ids.push_back(i);
  for (float& f : z) f = f * (1.0f / s.temperature);
  const auto value = [&](int32_t id) { return z[static_cast<size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return value(a) > value(b); });
  if (s.top_k > 0 && ids.size() > static_cast<size_t>(s.top_k)) ids.resize(static_cast<size_t>(s.top_k));
  std::vector<double> p;
  for (const int32_t id : ids) p.push_back(static_cast<double>(scalar::exp(value(id) - value(ids[0]))));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  size_t kept = ids.size();
  if (s.top_p < 1.0f) {
    double sum = 0;
    for (kept = 0; kept < ids.size() && (kept == 0 || sum < static_cast<double>(s.top_p) * total); ++kept) sum += p[kept];
  }
  while (kept > 1 && s.min_p > 0 && p[kept - 1] < static_cast<double>(s.min_p)) --kept;
  ids.resize(kept);
  std::sort(ids.begin(), ids.end());
  return ids;
}

TEST_F(Sampling, KeptSetsAreThoseOfAFullSort) {
  const LogitBias bias{{1, 40}, {3.0f, -2.0f}};
  const std::vector<int32_t> banned = {0, 7};
  uint64_t seed = 0;
  int removed = 0;
  for (const int64_t vocab : {60, 700})
    for (const int32_t top_k : {0, 1, 5, 90})
      for (const float top_p : {1.0f, 0.9f, 0.3f, 0.0f})
        for (const float min_p : {0.0f, 0.05f})
          for (const bool extras : {false, true}) {
            SampleParams s;
            s.temperature = 1.3f;
            s.top_k = top_k;
            s.top_p = top_p;
            s.min_p = min_p;
            s.seed = ++seed;
            if (extras) {
              s.bias = &bias;
              s.banned = banned;
            }
            const std::vector<float> z = tied_logits(vocab, seed);
            std::vector<float> scratch = z;
            const Sampled r = sample(scratch.data(), vocab, s, false);
            std::vector<int32_t> kept = r.kept.ids;
            if (r.kept.all) {
              kept.resize(static_cast<size_t>(vocab));
              std::iota(kept.begin(), kept.end(), 0);
            }
            removed += !r.kept.all;
            EXPECT_EQ(kept, brute_kept(z, s)) << "vocab " << vocab << " k " << top_k << " p " << top_p << " min_p " << min_p;
            EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), r.token));
          }
  EXPECT_GT(removed, 100);
}

TEST_F(Sampling, TokenAndLogProbAreTheSameOnEveryTarget) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SampleParams s;
    s.seed = seed;
    s.position = 17;
    s.top_p = seed % 2 ? 0.8f : 1.0f;
    const std::vector<float> z = normal_floats(3001, seed, 2.0f);
    Sampled first;
    bool have = false;
    everywhere([&] {
      std::vector<float> scratch = z;
      const Sampled r = sample(scratch.data(), 3001, s, true);
      if (!have) first = r;
      have = true;
      EXPECT_EQ(r.token, first.token);
      EXPECT_EQ(r.log_prob, first.log_prob);
      EXPECT_EQ(r.raw_log_prob, z[static_cast<size_t>(r.token)] - log_sum_exp(z.data(), 3001));
      if (s.top_p == 1.0f) {
        EXPECT_EQ(r.raw_log_prob, r.log_prob);
      }
    });
  }
}

TEST_F(Sampling, FrequenciesFollowTheProbabilities) {
  const std::vector<float> z = {0.0f, 1.0f, 2.0f, -1.0f};
  double total = 0;
  for (const float f : z) total += det_exp(static_cast<double>(f));
  std::vector<int> counts(4);
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    std::vector<float> scratch = z;
    SampleParams s;
    s.seed = 5;
    s.position = static_cast<uint64_t>(i);
    ++counts[static_cast<size_t>(sample(scratch.data(), 4, s, false).token)];
  }
  for (size_t i = 0; i < 4; ++i) {
    const double p = det_exp(static_cast<double>(z[i])) / total;
    EXPECT_NEAR(counts[i], kDraws * p, 4 * std::sqrt(kDraws * p * (1 - p)));
  }
}

TEST_F(Sampling, GreedyTakesTheLowestOfEqualsAndReportsTheRawLogProb) {
  const LogitBias bias{{2}, {5.0f}};
  const std::vector<int32_t> banned = {1};
  const std::vector<float> z = {0.0f, 4.0f, -1.0f, 4.0f};
  std::vector<float> scratch = z;
  SampleParams s;
  s.temperature = 0.0f;
  EXPECT_EQ(sample(scratch.data(), 4, s, false).token, 1);
  s.bias = &bias;
  s.banned = banned;
  scratch = z;
  const Sampled r = sample(scratch.data(), 4, s, false);
  EXPECT_EQ(r.token, 2);
  EXPECT_EQ(r.log_prob, -1.0f - log_sum_exp(z.data(), 4));
  EXPECT_TRUE(r.kept.all);
}

TEST_F(Sampling, RefusesRowsWithoutAnyToken) {
  const std::vector<int32_t> banned = {0, 1};
  SampleParams s;
  s.banned = banned;
  std::vector<float> z = {1.0f, 2.0f};
  EXPECT_THROW(sample(z.data(), 2, s, false), ValueError);
  s.banned = {};
  z = {NAN, NAN};
  EXPECT_THROW(sample(z.data(), 2, s, false), ValueError);
  const std::vector<int32_t> outside = {2};
  s.banned = outside;
  EXPECT_THROW(sample(z.data(), 2, s, false), ValueError);
}

TEST_F(Sampling, TopLogProbsDescendWithTiesToTheLowerId) {
  const std::vector<float> z = {1.0f, 3.0f, 3.0f, 2.0f};
  const auto top = top_log_probs(z.data(), 4, 3);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].first, 1);
  EXPECT_EQ(top[1].first, 2);
  EXPECT_EQ(top[2].first, 3);
  EXPECT_EQ(top[0].second, 3.0f - log_sum_exp(z.data(), 4));
  EXPECT_EQ(top_log_probs(z.data(), 4, 9).size(), 4u);
}

}  // namespace
}  // namespace weft::kernels
