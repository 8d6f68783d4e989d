#include "weft/kernels/moe_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "weft/kernels/scalar_math.h"

namespace weft::kernels::reference {
namespace {

float sigmoid(float x) { return 1.0f / (1.0f + scalar::exp(0.0f - x)); }

}  // namespace

void router_select(const float* logits, int64_t tokens, int64_t experts, const RouterParams& params, int32_t* ids) {
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<float> value(logits + t * experts, logits + (t + 1) * experts);
    if (params.score == RouterScore::kSigmoid)
      for (int64_t e = 0; e < experts; ++e) {
        float& v = value[static_cast<size_t>(e)];
        v = params.bias ? sigmoid(v) + params.bias[e] : sigmoid(v);
      }
    std::vector<int32_t> order(static_cast<size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return value[static_cast<size_t>(a)] > value[static_cast<size_t>(b)]; });
    std::copy_n(order.begin(), params.top_k, ids + t * params.top_k);
  }
}

void router_gates(const float* logits, int64_t tokens, int64_t experts, const RouterParams& params, const int32_t* ids,
                  float* gates) {
  const int64_t k = params.top_k;
  for (int64_t t = 0; t < tokens; ++t) {
    const float* l = logits + t * experts;
    const int32_t* id = ids + t * k;
    float m = -scalar::kInf, sum = 0.0f, lanes[16] = {};
    const bool all = params.score == RouterScore::kSoftmax && !params.normalize;
    if (all) {
      for (int64_t e = 0; e < experts; ++e) m = std::max(m, l[e]);
      for (int64_t e = 0; e < experts; ++e) lanes[e % 16] += scalar::exp(l[e] - m);
      sum = scalar::lane_tree(lanes);
    } else {
      for (int64_t j = 0; j < k; ++j) m = std::max(m, l[id[j]]);
    }
    const auto term = [&](int64_t j) {
      return params.score == RouterScore::kSoftmax ? scalar::exp(l[id[j]] - m) : sigmoid(l[id[j]]);
    };
    for (int64_t j = 0; j < k && params.normalize; ++j) sum = sum + term(j);
    if (!params.normalize && !all) sum = 1.0f;
    for (int64_t j = 0; j < k; ++j) gates[t * k + j] = term(j) / sum * params.scale;
  }
}

void combine_forward(ConstMatrix out, const Permutation& p, int64_t top_k, const float* gates, float* y) {
  for (int64_t t = 0; t < out.rows / top_k; ++t)
    for (int64_t c = 0; c < out.cols; ++c) {
      float acc = 0.0f;
      for (int64_t j = 0; j < top_k; ++j) {
        const auto pair = static_cast<size_t>(t * top_k + j);
        const float product = gates[pair] * scalar::at(out, p.position[pair], c);
        acc = j == 0 ? product : acc + product;
      }
      y[t * out.cols + c] = acc;
    }
}

void combine_backward(const float* dy, ConstMatrix out, const Permutation& p, int64_t top_k, const float* gates, Matrix dout,
                      float* dgates) {
  for (int64_t r = 0; r < out.rows; ++r) {
    const int64_t pair = p.order[static_cast<size_t>(r)];
    float lanes[16] = {};
    for (int64_t c = 0; c < out.cols; ++c) {
      const float d = dy[pair / top_k * out.cols + c];
      lanes[c % 16] = std::fma(d, scalar::at(out, r, c), lanes[c % 16]);
      scalar::put(dout, r, c, gates[pair] * d);
    }
    dgates[pair] = scalar::lane_tree(lanes);
  }
}

}  // namespace weft::kernels::reference
