#include "weft/kernels/logprob_reference.h"

#include <algorithm>

#include "weft/kernels/scalar_math.h"

namespace weft::kernels::reference {
namespace {

scalar::MaxSum block(const float* z, int64_t n) {
  scalar::MaxSum out;
  for (int64_t i = 0; i < n; ++i) out.max = std::max(out.max, z[i]);
  if (out.max == -scalar::kInf) return out;
  float lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % 16] += scalar::exp(z[i] - out.max);
  out.sum = scalar::lane_tree(lanes);
  return out;
}

}  // namespace

float log_sum_exp(const float* z, int64_t vocab, bool tree) {
  scalar::MaxSum leaf[kNumLeaves];
  for (int i = 0; i < kNumLeaves; ++i) {
    const int64_t end = std::min(vocab, vocab_leaf(vocab, i + 1));
    for (int64_t v = vocab_leaf(vocab, i); v < end; v += 512)
      leaf[i] = scalar::merge(leaf[i], block(z + v, std::min<int64_t>(512, end - v)));
  }
  if (tree) {
    for (int step = 1; step < kNumLeaves; step *= 2)
      for (int i = 0; i < kNumLeaves; i += 2 * step) leaf[i] = scalar::merge(leaf[i], leaf[i + step]);
  } else {
    for (int i = 1; i < kNumLeaves; ++i) leaf[0] = scalar::merge(leaf[0], leaf[i]);
  }
  return leaf[0].max + scalar::log(leaf[0].sum);
}

void logprob_forward(const float* logits, int64_t vocab, std::span<const HeadRow> rows, float* log_probs, float* lse) {
  for (size_t r = 0; r < rows.size(); ++r) {
    const HeadRow& row = rows[r];
    std::vector<float> z(logits + static_cast<int64_t>(r) * vocab, logits + static_cast<int64_t>(r + 1) * vocab);
    for (size_t i = 0; row.bias && i < row.bias->ids.size(); ++i) z[static_cast<size_t>(row.bias->ids[i])] += row.bias->values[i];
    for (int64_t v = 0; v < vocab; ++v) {
      float& value = z[static_cast<size_t>(v)];
      value = value * row.inv_temperature;
      if (row.kept && !row.kept->all && !std::binary_search(row.kept->ids.begin(), row.kept->ids.end(), v)) value = -scalar::kInf;
    }
    lse[r] = log_sum_exp(z.data(), vocab);
    log_probs[r] = z[static_cast<size_t>(row.target)] - lse[r];
  }
}

}  // namespace weft::kernels::reference
