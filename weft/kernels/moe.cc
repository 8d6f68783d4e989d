#include "weft/kernels/moe.h"

#include <algorithm>
#include <cstring>

#include "weft/base/threads.h"
#include "weft/kernels/elementwise_simd.h"
#include "weft/kernels/moe_simd.h"
#include "weft/kernels/row_pointers.h"
#include "weft/kernels/scalar_math.h"

namespace weft::kernels {
namespace {

constexpr int64_t kTokenGrain = 32;

int64_t copy_grain(int64_t cols) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(cols, 1)); }

void check_params(int64_t experts, const RouterParams& params) {
  WEFT_CHECK(params.top_k >= 1 && params.top_k <= experts, "top_k {} of {} experts", params.top_k, experts);
}

// 1 / (1 + exp(-l)) of a row.
void sigmoid(const ElementwiseTable& loops, const float* logits, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = 0.0f - logits[i];
  loops.exp(out, out, n);
  for (int64_t i = 0; i < n; ++i) out[i] = 1.0f / (1.0f + out[i]);
}

// exp(l - max) of a row, and its lane sum.
float softmax_terms(const ElementwiseTable& loops, const float* logits, float* out, int64_t n) {
  const float m = *std::max_element(logits, logits + n);
  for (int64_t i = 0; i < n; ++i) out[i] = logits[i] - m;
  loops.exp(out, out, n);
  float lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % 16] += out[i];
  return scalar::lane_tree(lanes);
}

// The terms of k slots before scaling, and the sum that divides them (1 where nothing does).
struct Slots {
  std::vector<float> terms, row;
  float sum = 1.0f;
};
void slot_terms(const ElementwiseTable& loops, const float* logits, int64_t experts, const RouterParams& params,
                const int32_t* ids, Slots& s) {
  const int64_t k = params.top_k;
  s.terms.resize(static_cast<size_t>(k));
  for (int64_t j = 0; j < k; ++j) WEFT_CHECK(ids[j] >= 0 && ids[j] < experts, "expert {} of {}", ids[j], experts);
  if (params.score == RouterScore::kSoftmax && !params.normalize) {
    s.row.resize(static_cast<size_t>(experts));
    s.sum = softmax_terms(loops, logits, s.row.data(), experts);
    for (int64_t j = 0; j < k; ++j) s.terms[static_cast<size_t>(j)] = s.row[static_cast<size_t>(ids[j])];
    return;
  }
  for (int64_t j = 0; j < k; ++j) s.terms[static_cast<size_t>(j)] = logits[ids[j]];
  if (params.score == RouterScore::kSoftmax) {
    const float m = *std::max_element(s.terms.begin(), s.terms.end());
    for (float& t : s.terms) t = t - m;
    loops.exp(s.terms.data(), s.terms.data(), k);
  } else {
    sigmoid(loops, s.terms.data(), s.terms.data(), k);
  }
  s.sum = 1.0f;
  if (params.normalize) {
    s.sum = 0.0f;
    for (const float t : s.terms) s.sum = s.sum + t;
  }
}

}  // namespace

void router_select(const float* logits, int64_t tokens, int64_t experts, const RouterParams& params, int32_t* ids) {
  check_params(experts, params);
  const auto& loops = elementwise_table();
  parallel_for(tokens, kTokenGrain, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(experts));
    for (int64_t t = begin; t < end; ++t) {
      const float* value = logits + t * experts;
      if (params.score == RouterScore::kSigmoid) {
        sigmoid(loops, value, row.data(), experts);
        if (params.bias)
          for (int64_t e = 0; e < experts; ++e) row[static_cast<size_t>(e)] += params.bias[e];
        value = row.data();
      }
      // A sorted list of the best so far: an equal value never displaces a lower id.
      int32_t* best = ids + t * params.top_k;
      int64_t count = 0;
      for (int64_t e = 0; e < experts; ++e) {
        if (count == params.top_k && !(value[e] > value[best[count - 1]])) continue;
        int64_t at = count < params.top_k ? count++ : count - 1;
        for (; at > 0 && value[e] > value[best[at - 1]]; --at) best[at] = best[at - 1];
        best[at] = static_cast<int32_t>(e);
      }
    }
  });
}

void router_gates(const float* logits, int64_t tokens, int64_t experts, const RouterParams& params, const int32_t* ids,
                  float* gates) {
  check_params(experts, params);
  const auto& loops = elementwise_table();
  const int64_t k = params.top_k;
  parallel_for(tokens, kTokenGrain, [&](int64_t begin, int64_t end) {
    Slots s;
    for (int64_t t = begin; t < end; ++t) {
      slot_terms(loops, logits + t * experts, experts, params, ids + t * k, s);
      for (int64_t j = 0; j < k; ++j) gates[t * k + j] = s.terms[static_cast<size_t>(j)] / s.sum * params.scale;
    }
  });
}

void router_gates_backward(const float* dgates, const float* logits, const float* gates, int64_t tokens, int64_t experts,
                           const RouterParams& params, const int32_t* ids, float* dlogits) {
  check_params(experts, params);
  const auto& loops = elementwise_table();
  const int64_t k = params.top_k;
  parallel_for(tokens, kTokenGrain, [&](int64_t begin, int64_t end) {
    Slots s;
    for (int64_t t = begin; t < end; ++t) {
      const int32_t* id = ids + t * k;
      const float* dg = dgates + t * k;
      float* d = dlogits + t * experts;
      slot_terms(loops, logits + t * experts, experts, params, id, s);
      // Both softmax forms and normalised sigmoids subtract the gates' weighted mean of the incoming gradient.
      float mean = 0.0f;
      for (int64_t j = 0; j < k; ++j) mean = mean + dg[j] * gates[t * k + j];
      if (params.score == RouterScore::kSoftmax && !params.normalize) {
        for (int64_t e = 0; e < experts; ++e) d[e] -= s.row[static_cast<size_t>(e)] / s.sum * mean;
        for (int64_t j = 0; j < k; ++j) d[id[j]] += dg[j] * gates[t * k + j];
        continue;
      }
      for (int64_t j = 0; j < k; ++j) {
        const float term = s.terms[static_cast<size_t>(j)];
        if (params.score == RouterScore::kSoftmax) {
          d[id[j]] += term / s.sum * (dg[j] * params.scale - mean);
        } else {
          const float dterm = params.normalize ? (dg[j] * params.scale - mean) / s.sum : dg[j] * params.scale;
          d[id[j]] += dterm * (term * (1.0f - term));
        }
      }
    }
  });
}

Permutation make_permutation(std::span<const int32_t> ids, int64_t top_k, int64_t experts) {
  WEFT_CHECK(top_k >= 1 && static_cast<int64_t>(ids.size()) % top_k == 0, "{} ids in slots of {}", ids.size(), top_k);
  Permutation p;
  p.offsets.assign(static_cast<size_t>(experts) + 1, 0);
  p.order.resize(ids.size());
  p.position.resize(ids.size());
  for (const int32_t id : ids) {
    WEFT_CHECK(id >= 0 && id < experts, "expert {} of {}", id, experts);
    ++p.offsets[static_cast<size_t>(id) + 1];
  }
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e) p.offsets[e + 1] += p.offsets[e];
  std::vector<int64_t> next(p.offsets.begin(), p.offsets.end() - 1);
  for (size_t pair = 0; pair < ids.size(); ++pair) {
    const int64_t row = next[static_cast<size_t>(ids[pair])]++;
    p.order[static_cast<size_t>(row)] = static_cast<int32_t>(pair);
    p.position[pair] = static_cast<int32_t>(row);
  }
  return p;
}

void permute_rows(ConstMatrix x, const Permutation& p, int64_t top_k, Matrix rows) {
  WEFT_CHECK(x.dtype == rows.dtype && x.cols == rows.cols, "rows are copied, not converted");
  WEFT_CHECK(rows.rows == x.rows * top_k && rows.rows == static_cast<int64_t>(p.order.size()),
             "{} rows for {} tokens in {} slots", rows.rows, x.rows, top_k);
  const auto bytes = static_cast<size_t>(x.cols * dtype_bytes(x.dtype));
  parallel_for(rows.rows, copy_grain(x.cols), [&](int64_t b, int64_t e) {
    for (int64_t r = b; r < e; ++r) std::memcpy(row_of(rows, r), row_of(x, p.order[static_cast<size_t>(r)] / top_k), bytes);
  });
}

void permute_rows_backward(ConstMatrix drows, const Permutation& p, int64_t top_k, float* dx) {
  const int64_t tokens = drows.rows / top_k, h = drows.cols;
  const bool bf = is_bf16(drows);
  const auto& loops = moe_table();
  parallel_for(tokens, copy_grain(h * top_k), [&](int64_t b, int64_t e) {
    for (int64_t t = b; t < e; ++t)
      for (int64_t j = 0; j < top_k; ++j)
        loops.combine(row_of(drows, p.position[static_cast<size_t>(t * top_k + j)]), bf, 1.0f, dx + t * h, j == 0, h);
  });
}

void combine_forward(ConstMatrix out, const Permutation& p, int64_t top_k, const float* gates, float* y) {
  const int64_t tokens = out.rows / top_k, h = out.cols;
  const bool bf = is_bf16(out);
  const auto& loops = moe_table();
  parallel_for(tokens, copy_grain(h * top_k), [&](int64_t b, int64_t e) {
    for (int64_t t = b; t < e; ++t)
      for (int64_t j = 0; j < top_k; ++j) {
        const auto pair = static_cast<size_t>(t * top_k + j);
        loops.combine(row_of(out, p.position[pair]), bf, gates[pair], y + t * h, j == 0, h);
      }
  });
}

void combine_backward(const float* dy, ConstMatrix out, const Permutation& p, int64_t top_k, const float* gates, Matrix dout,
                      float* dgates) {
  WEFT_CHECK(out.rows == dout.rows && out.cols == dout.cols, "gradient [{}, {}] of rows [{}, {}]", dout.rows, dout.cols, out.rows,
             out.cols);
  const int64_t h = out.cols;
  const bool bf = is_bf16(out), dbf = is_bf16(dout);
  const auto& loops = moe_table();
  parallel_for(out.rows, copy_grain(h), [&](int64_t b, int64_t e) {
    for (int64_t r = b; r < e; ++r) {
      const int64_t pair = p.order[static_cast<size_t>(r)];
      const float* d = dy + pair / top_k * h;
      if (dgates) dgates[pair] = loops.dot(d, row_of(out, r), bf, h);
      loops.scale(d, gates[pair], row_of(dout, r), dbf, h);
    }
  });
}

}  // namespace weft::kernels
