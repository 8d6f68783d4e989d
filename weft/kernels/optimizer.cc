#include "weft/kernels/optimizer.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/math.h"
#include "weft/base/threads.h"
#include "weft/kernels/optimizer_simd.h"

namespace weft::kernels {
namespace {

constexpr int64_t kGrain = 16384;
constexpr int64_t kSumBlock = 4096;

}  // namespace

void adamw(const AdamWStep& s, const float* grad, float* param, float* m, float* v, int64_t n) {
  WEFT_CHECK(s.step >= 1, "AdamW steps count from 1, not {}", s.step);
  const double t = static_cast<double>(s.step);
  const double correction1 = 1.0 - det_pow(s.beta1, t), correction2 = 1.0 - det_pow(s.beta2, t);
  const AdamWScalars scalars = {static_cast<float>(s.grad_scale),
                                static_cast<float>(s.lr * s.weight_decay),
                                static_cast<float>(s.beta1),
                                static_cast<float>(1.0 - s.beta1),
                                static_cast<float>(s.beta2),
                                static_cast<float>(1.0 - s.beta2),
                                static_cast<float>(s.lr / correction1),
                                static_cast<float>(std::sqrt(correction2)),
                                static_cast<float>(s.eps)};
  const auto& table = optimizer_table();
  parallel_for(n, kGrain, [&](int64_t b, int64_t e) { table.adamw(scalars, grad + b, param + b, m + b, v + b, e - b); });
}

double sum_of_squares(const float* x, int64_t n) {
  const int64_t blocks = (n + kSumBlock - 1) / kSumBlock;
  std::vector<double> sums(static_cast<size_t>(blocks));
  parallel_for(blocks, 4, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      double lanes[16] = {};
      const float* p = x + block * kSumBlock;
      const int64_t count = std::min(kSumBlock, n - block * kSumBlock);
      int64_t i = 0;
      for (; i + 16 <= count; i += 16)
        for (int64_t j = 0; j < 16; ++j) lanes[j] += static_cast<double>(p[i + j]) * static_cast<double>(p[i + j]);
      for (; i < count; ++i) lanes[i % 16] += static_cast<double>(p[i]) * static_cast<double>(p[i]);
      for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
      sums[static_cast<size_t>(block)] = lanes[0];
    }
  });
  double total = 0.0;
  for (const double s : sums) total += s;
  return total;
}

bool all_finite(const float* x, int64_t n) {
  std::atomic<bool> finite{true};
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    bool bad = false;
    for (int64_t i = begin; i < end; ++i) bad |= (std::bit_cast<uint32_t>(x[i]) & 0x7f800000u) == 0x7f800000u;
    if (bad) finite.store(false);
  });
  return finite.load();
}

}  // namespace weft::kernels
