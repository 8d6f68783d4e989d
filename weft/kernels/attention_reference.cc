#include "weft/kernels/attention_reference.h"

#include <algorithm>
#include <cmath>

#include "weft/kernels/attention_simd.h"
#include "weft/kernels/scalar_math.h"

namespace weft::kernels::reference {
namespace {

using scalar::at;

float dot(ConstMatrix a, int64_t ra, int64_t ca, ConstMatrix b, int64_t rb, int64_t cb, int64_t n) {
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum = std::fma(at(a, ra, ca + i), at(b, rb, cb + i), sum);
  return sum;
}

struct Segment {
  float m = -scalar::kInf, l = 0.0f;
  std::vector<float> o;
};

}  // namespace

void attention_packed_forward(ConstMatrix q, ConstMatrix k, ConstMatrix v, int64_t num_heads, int64_t num_kv_heads,
                              std::span<const int64_t> offsets, float scale, Matrix o, float* lse, int64_t first_block) {
  const int64_t d = q.cols / num_heads, group = num_heads / num_kv_heads;
  for (size_t sequence = 0; sequence + 1 < offsets.size(); ++sequence)
    for (int64_t row = offsets[sequence]; row < offsets[sequence + 1]; ++row)
      for (int64_t head = 0; head < num_heads; ++head) {
        const int64_t start = offsets[sequence], kv = head / group * d, keys = row - start + 1;
        Segment total;
        for (int64_t begin = 0; begin < keys; begin += kKeySegment) {
          Segment s;
          s.o.assign(static_cast<size_t>(d), 0.0f);
          const int64_t end = std::min(keys, begin + kKeySegment);
          for (int64_t block = begin, size = first_block; block < end; block += size, size = kKeyBlock) {
            if (block > 0) size = kKeyBlock;
            const int64_t n = std::min(size, end - block);
            float x[64], lanes[16] = {}, top = s.m;
            for (int64_t j = 0; j < n; ++j) {
              x[j] = dot(q, row, head * d, k, start + block + j, kv, d) * scale;
              top = std::max(top, x[j]);
            }
            for (int64_t j = 0; j < n; ++j) {
              x[j] = scalar::exp(x[j] - top);
              lanes[j % 16] += x[j];
            }
            const float alpha = scalar::exp(s.m - top);
            s.m = top;
            s.l = s.l * alpha + scalar::lane_tree(lanes);
            for (int64_t c = 0; c < d; ++c) {
              float acc = s.o[static_cast<size_t>(c)] * alpha;
              for (int64_t j = 0; j < n; ++j) acc = std::fma(x[j], at(v, start + block + j, kv + c), acc);
              s.o[static_cast<size_t>(c)] = acc;
            }
          }
          if (begin == 0) {
            total = s;
            continue;
          }
          const float top = std::max(total.m, s.m), a = scalar::exp(total.m - top), b = scalar::exp(s.m - top);
          total.m = top;
          total.l = total.l * a + s.l * b;
          for (size_t c = 0; c < s.o.size(); ++c) total.o[c] = total.o[c] * a + s.o[c] * b;
        }
        for (int64_t c = 0; c < d; ++c) scalar::put(o, row, head * d + c, total.o[static_cast<size_t>(c)] / total.l);
        if (lse) lse[row * num_heads + head] = total.m + scalar::log(total.l);
      }
}

// Chains: dq over the keys of a block of 64, dk and dv over the rows of a query tile; each from +0, added ascending.
void attention_packed_backward(ConstMatrix d_o, ConstMatrix q, ConstMatrix k, ConstMatrix v, ConstMatrix o, const float* lse,
                               int64_t num_heads, int64_t num_kv_heads, std::span<const int64_t> offsets, float scale, Matrix dq,
                               Matrix dk, Matrix dv) {
  const int64_t d = q.cols / num_heads, group = num_heads / num_kv_heads, tile = std::max<int64_t>(1, kQueryTile / group);
  for (size_t sequence = 0; sequence + 1 < offsets.size(); ++sequence) {
    const int64_t start = offsets[sequence], length = offsets[sequence + 1] - start;
    for (int64_t kv = 0; kv < num_kv_heads; ++kv) {
      // p and ds of [row, head of the group, key].
      const auto index = [&](int64_t i, int64_t g, int64_t j) { return static_cast<size_t>((i * group + g) * length + j); };
      std::vector<float> p(static_cast<size_t>(length * group * length)), ds(p.size());
      for (int64_t i = 0; i < length; ++i)
        for (int64_t g = 0; g < group; ++g) {
          const int64_t head = kv * group + g;
          float lanes[16] = {};
          for (int64_t c = 0; c < d; ++c)
            lanes[c % 16] = std::fma(at(d_o, start + i, head * d + c), at(o, start + i, head * d + c), lanes[c % 16]);
          const float delta = scalar::lane_tree(lanes);
          for (int64_t j = 0; j <= i; ++j) {
            const float value =
                scalar::exp(dot(q, start + i, head * d, k, start + j, kv * d, d) * scale - lse[(start + i) * num_heads + head]);
            p[index(i, g, j)] = value;
            ds[index(i, g, j)] = value * (dot(d_o, start + i, head * d, v, start + j, kv * d, d) - delta) * scale;
          }
          for (int64_t c = 0; c < d; ++c) {
            float sum = 0.0f;
            for (int64_t block = 0; block <= i; block += kKeyBlock) {
              float chain = 0.0f;
              for (int64_t j = block; j < std::min(i + 1, block + kKeyBlock); ++j)
                chain = std::fma(ds[index(i, g, j)], at(k, start + j, kv * d + c), chain);
              sum = sum + chain;
            }
            scalar::put(dq, start + i, head * d + c, sum);
          }
        }
      for (int64_t j = 0; j < length; ++j)
        for (int64_t c = 0; c < d; ++c) {
          float sum_k = 0.0f, sum_v = 0.0f;
          for (int64_t first = 0; first < length; first += tile) {
            float chain_k = 0.0f, chain_v = 0.0f;
            for (int64_t i = std::max(first, j); i < std::min(length, first + tile); ++i)
              for (int64_t g = 0; g < group; ++g) {
                const int64_t col = (kv * group + g) * d + c;
                chain_k = std::fma(ds[index(i, g, j)], at(q, start + i, col), chain_k);
                chain_v = std::fma(p[index(i, g, j)], at(d_o, start + i, col), chain_v);
              }
            sum_k = sum_k + chain_k;
            sum_v = sum_v + chain_v;
          }
          scalar::put(dk, start + j, kv * d + c, sum_k);
          scalar::put(dv, start + j, kv * d + c, sum_v);
        }
    }
  }
}

}  // namespace weft::kernels::reference
