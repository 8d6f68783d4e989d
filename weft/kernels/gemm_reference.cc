#include "weft/kernels/gemm_reference.h"

#include <algorithm>
#include <cmath>

namespace weft::kernels {
namespace {

float get(ConstMatrix m, int64_t i, int64_t j) {
  const int64_t at = i * m.stride + j;
  if (m.dtype == DType::kI8) return static_cast<float>(static_cast<const int8_t*>(m.data)[at]);
  return m.dtype == DType::kF32 ? static_cast<const float*>(m.data)[at] : bf16_to_float(static_cast<const bf16*>(m.data)[at]);
}

void put(Matrix m, int64_t i, int64_t j, float value) {
  const int64_t at = i * m.stride + j;
  if (m.dtype == DType::kF32)
    static_cast<float*>(m.data)[at] = value;
  else
    static_cast<bf16*>(m.data)[at] = float_to_bf16(value);
}

template <class View>
View rows_of(View m, int64_t begin, int64_t end) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(m.data)>>, const char, char>;
  m.data = static_cast<Byte*>(m.data) + begin * m.stride * dtype_bytes(m.dtype);
  m.rows = end - begin;
  return m;
}

// One chain from +0 over d in [begin, end) of a(d) * b(d).
template <class A, class B>
float chain_of(int64_t begin, int64_t end, bool pairs, const Order& order, const A& a, const B& b) {
  float sum = 0.0f;
  for (int64_t i = begin; i < end; ++i) {
    int64_t d = order.reversed ? end - 1 - (i - begin) : i;
    if (pairs && !order.even_first) {
      const int64_t partner = begin + ((d - begin) ^ 1);
      if (partner < end) d = partner;
    }
    sum = std::fma(a(d), b(d), sum);
  }
  return sum;
}

}  // namespace

void gemm_reference(ConstMatrix x, ConstMatrix w, const float* bias, Matrix y, Chain chain, Order order, const float* scales) {
  const int64_t k = x.cols;
  const bool pairs = x.dtype == DType::kBF16 && w.dtype == DType::kBF16;
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t j = 0; j < w.rows; ++j) {
      const auto a = [&](int64_t d) { return get(x, i, d); };
      const auto b = [&](int64_t d) { return get(w, j, d); };
      float sum;
      if (chain == Chain::kSingle) {
        sum = chain_of(0, k, pairs, order, a, b);
        if (scales) sum = sum * scales[j];
      } else {
        const auto cut = [&](int leaf) {
          return order.ceil_leaves ? std::min(k, leaf * ((k + kNumLeaves - 1) / kNumLeaves)) : leaf_begin(k, leaf);
        };
        float s[kNumLeaves];
        for (int leaf = 0; leaf < kNumLeaves; ++leaf) {
          s[leaf] = chain_of(cut(leaf), cut(leaf + 1), pairs, order, a, b);
          if (scales && !order.scale_last) s[leaf] = s[leaf] * scales[j];
        }
        sum = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
        if (order.left_to_right) {
          sum = s[0];
          for (int leaf = 1; leaf < kNumLeaves; ++leaf) sum = sum + s[leaf];
        }
        if (scales && order.scale_last) sum = sum * scales[j];
      }
      put(y, i, j, bias ? sum + bias[j] : sum);
    }
}

void gemm_input_grad_reference(ConstMatrix dy, ConstMatrix w, Matrix dx, bool accumulate, Order order) {
  const bool pairs = dy.dtype == DType::kBF16 && w.dtype == DType::kBF16;
  for (int64_t i = 0; i < dy.rows; ++i)
    for (int64_t j = 0; j < w.cols; ++j) {
      float sum = accumulate ? get(dx, i, j) : 0.0f;
      for (int64_t begin = 0; begin < dy.cols; begin += order.input_grad_chain) {
        const int64_t end = std::min(dy.cols, begin + order.input_grad_chain);
        const float part = chain_of(
            begin, end, pairs, order, [&](int64_t d) { return get(dy, i, d); }, [&](int64_t d) { return get(w, d, j); });
        sum = begin == 0 && !accumulate ? part : sum + part;
      }
      put(dx, i, j, sum);
    }
}

void gemm_weight_grad_reference(ConstMatrix dy, ConstMatrix x, float* dw, Order order) {
  const bool pairs = dy.dtype == DType::kBF16 && x.dtype == DType::kBF16;
  for (int64_t i = 0; i < dy.cols; ++i)
    for (int64_t j = 0; j < x.cols; ++j)
      for (int64_t begin = 0; begin < dy.rows; begin += order.weight_grad_chain) {
        const int64_t end = std::min(dy.rows, begin + order.weight_grad_chain);
        float& sum = dw[i * x.cols + j];
        sum = sum +
              chain_of(
                  begin, end, pairs, order, [&](int64_t d) { return get(dy, d, i); }, [&](int64_t d) { return get(x, d, j); });
      }
}

void gemm_bias_grad_reference(ConstMatrix dy, float* dbias) {
  for (int64_t j = 0; j < dy.cols; ++j)
    for (int64_t begin = 0; begin < dy.rows; begin += 256) {
      float sum = 0.0f;
      for (int64_t i = begin; i < std::min(dy.rows, begin + 256); ++i) sum = sum + get(dy, i, j);
      dbias[j] = dbias[j] + sum;
    }
}

void grouped_gemm_reference(ConstMatrix x, const void* w, DType w_dtype, std::span<const int64_t> offsets, Matrix y,
                            const float* scales) {
  const int64_t experts = static_cast<int64_t>(offsets.size()) - 1;
  const ConstMatrix all{w, w_dtype, experts * y.cols, x.cols, x.cols};
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t begin = offsets[static_cast<size_t>(e)], end = offsets[static_cast<size_t>(e) + 1];
    gemm_reference(rows_of(x, begin, end), rows_of(all, e * y.cols, (e + 1) * y.cols), nullptr, rows_of(y, begin, end),
                   Chain::kSingle, {}, scales ? scales + e * y.cols : nullptr);
  }
}

void grouped_gemm_input_grad_reference(ConstMatrix dy, const void* w, DType w_dtype, std::span<const int64_t> offsets,
                                       Matrix dx) {
  const int64_t experts = static_cast<int64_t>(offsets.size()) - 1;
  const ConstMatrix all{w, w_dtype, experts * dy.cols, dx.cols, dx.cols};
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t begin = offsets[static_cast<size_t>(e)], end = offsets[static_cast<size_t>(e) + 1];
    gemm_input_grad_reference(rows_of(dy, begin, end), rows_of(all, e * dy.cols, (e + 1) * dy.cols), rows_of(dx, begin, end));
  }
}

void grouped_gemm_weight_grad_reference(ConstMatrix dy, ConstMatrix x, std::span<const int64_t> offsets, float* dw) {
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    gemm_weight_grad_reference(rows_of(dy, offsets[e], offsets[e + 1]), rows_of(x, offsets[e], offsets[e + 1]),
                               dw + static_cast<int64_t>(e) * dy.cols * x.cols);
}

}  // namespace weft::kernels
