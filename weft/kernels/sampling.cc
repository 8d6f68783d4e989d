#include "weft/kernels/sampling.h"

#include <algorithm>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/kernels/elementwise_simd.h"
#include "weft/kernels/logprob_simd.h"

namespace weft::kernels {
namespace {

constexpr int64_t kChunk = 512;

// Descending by logit, ties to the lower id: the one order of top-k, top-p and greedy.
struct Better {
  const float* z;
  bool operator()(int32_t a, int32_t b) const { return z[a] != z[b] ? z[a] > z[b] : a < b; }
};

int32_t arg_max(const float* z, int64_t vocab) {
  int64_t best = -1;
  float top = -scalar::kInf;
  for (int64_t i = 0; i < vocab; ++i)
    if (z[i] > top) {
      top = z[i];
      best = i;
    }
  if (best < 0) throw ValueError("sampling: no token has a logit above -inf (all are banned, or the logits are NaN)");
  return static_cast<int32_t>(best);
}

// Keeps the shortest prefix of the descending order whose probability reaches top_p (at least one token). Only as much is sorted
// as the prefix needs.
void keep_top_p(const float* z, float top_p, std::vector<int32_t>& ids) {
  const auto& loops = elementwise_table();
  const float top = z[*std::min_element(ids.begin(), ids.end(), Better{z})];
  std::vector<float> p(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) p[i] = z[ids[i]] - top;
  loops.exp(p.data(), p.data(), static_cast<int64_t>(p.size()));
  double total = 0.0;
  for (const float f : p) total += static_cast<double>(f);
  const double wanted = static_cast<double>(top_p) * total;
  double sum = 0.0;
  size_t sorted = 0, kept = 0;
  for (size_t next = 64; kept == sorted && sorted < ids.size(); next *= 4) {
    const size_t end = std::min(ids.size(), next);
    const auto from = ids.begin() + static_cast<int64_t>(sorted);
    std::partial_sort(from, ids.begin() + static_cast<int64_t>(end), ids.end(), Better{z});
    p.resize(end - sorted);
    for (size_t i = sorted; i < end; ++i) p[i - sorted] = z[ids[i]] - top;
    loops.exp(p.data(), p.data(), static_cast<int64_t>(p.size()));
    for (size_t i = sorted; i < end && (kept == 0 || sum < wanted); ++i, ++kept) sum += static_cast<double>(p[i - sorted]);
    sorted = end;
  }
  ids.resize(kept);
}

void keep_min_p(const float* z, float min_p, std::vector<int32_t>& ids) {
  const float top = z[*std::min_element(ids.begin(), ids.end(), Better{z})];
  std::erase_if(ids, [&](int32_t id) { return scalar::exp(z[id] - top) < min_p; });
}

// The kept token with the largest z - log(-log(u)).
int32_t draw(const float* z, int64_t vocab, const KeptTokens& kept, const CounterRng& rng) {
  const auto& loops = logprob_table();
  const int64_t n = kept.all ? vocab : static_cast<int64_t>(kept.ids.size());
  float u[kChunk], gathered[kChunk], scores[kChunk], top = -scalar::kInf;
  int64_t best = -1;
  for (int64_t first = 0; first < n; first += kChunk) {
    const int64_t count = std::min(kChunk, n - first);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t id = kept.all ? first + i : kept.ids[static_cast<size_t>(first + i)];
      u[i] = static_cast<float>(rng.uniform01(static_cast<uint64_t>(id)));
      gathered[i] = z[id];
    }
    loops.gumbel(gathered, u, scores, count);
    for (int64_t i = 0; i < count; ++i)
      if (scores[i] > top) {
        top = scores[i];
        best = kept.all ? first + i : kept.ids[static_cast<size_t>(first + i)];
      }
  }
  if (best < 0) throw ValueError("sampling: no kept token has a finite logit (the logits hold NaN or infinities)");
  return static_cast<int32_t>(best);
}

void add_bias(float* logits, int64_t vocab, const SampleParams& params) {
  if (params.bias)
    for (size_t i = 0; i < params.bias->ids.size(); ++i) {
      const int32_t id = params.bias->ids[i];
      if (id < 0 || id >= vocab) throw ValueError(fmt::format("logit bias: token {} outside the vocabulary of {}", id, vocab));
      logits[id] += params.bias->values[i];
    }
  for (const int32_t id : params.banned) {
    if (id < 0 || id >= vocab) throw ValueError(fmt::format("banned token {} outside the vocabulary of {}", id, vocab));
    logits[id] = -scalar::kInf;
  }
}

}  // namespace

Sampled sample(float* logits, int64_t vocab, const SampleParams& params, bool want_raw) {
  Sampled out;
  const bool greedy = params.temperature == 0.0f;
  const bool changes = params.bias || !params.banned.empty() || params.temperature != 1.0f;
  std::vector<float> raw;
  float raw_lse = 0.0f;
  if (greedy || want_raw) {
    raw_lse = log_sum_exp(logits, vocab);
    if (changes) raw.assign(logits, logits + vocab);
  }
  add_bias(logits, vocab, params);
  if (greedy) {
    out.token = arg_max(logits, vocab);
    out.log_prob = (raw.empty() ? logits : raw.data())[out.token] - raw_lse;
    out.raw_log_prob = out.log_prob;
    return out;
  }
  if (params.temperature != 1.0f) logprob_table().scale(logits, 1.0f / params.temperature, vocab);
  const bool top_k = params.top_k > 0 && params.top_k < vocab, top_p = params.top_p<1.0f, min_p = params.min_p> 0.0f;
  if (top_k || top_p || min_p || !params.banned.empty()) {
    arg_max(logits, vocab);  // at least one token must be there to keep
    auto& ids = out.kept.ids;
    for (int64_t i = 0; i < vocab; ++i)
      if (logits[i] > -scalar::kInf) ids.push_back(static_cast<int32_t>(i));
    if (top_k && params.top_k < static_cast<int64_t>(ids.size())) {
      std::nth_element(ids.begin(), ids.begin() + params.top_k - 1, ids.end(), Better{logits});
      ids.resize(static_cast<size_t>(params.top_k));
      std::sort(ids.begin(), ids.end());
    }
    if (top_p) keep_top_p(logits, params.top_p, ids);
    if (min_p) keep_min_p(logits, params.min_p, ids);
    std::sort(ids.begin(), ids.end());
    out.kept.all = static_cast<int64_t>(ids.size()) == vocab;
    if (out.kept.all) {
      ids.clear();
    } else {
      int64_t next = 0;
      for (const int32_t id : ids) {
        std::fill(logits + next, logits + id, -scalar::kInf);
        next = id + 1;
      }
      std::fill(logits + next, logits + vocab, -scalar::kInf);
    }
  }
  const CounterRng rng(hash_combine(params.seed, params.sample_index, params.position));
  out.token = draw(logits, vocab, out.kept, rng);
  out.log_prob = logits[out.token] - log_sum_exp(logits, vocab);
  out.raw_log_prob = want_raw ? (raw.empty() ? logits : raw.data())[out.token] - raw_lse : out.log_prob;
  return out;
}

std::vector<std::pair<int32_t, float>> top_log_probs(const float* logits, int64_t vocab, int64_t n) {
  n = std::clamp<int64_t>(n, 0, vocab);
  std::vector<int32_t> ids(static_cast<size_t>(vocab));
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + n, ids.end(), Better{logits});
  const float lse = log_sum_exp(logits, vocab);
  std::vector<std::pair<int32_t, float>> out;
  for (int64_t i = 0; i < n; ++i) out.emplace_back(ids[static_cast<size_t>(i)], logits[ids[static_cast<size_t>(i)]] - lse);
  return out;
}

}  // namespace weft::kernels
