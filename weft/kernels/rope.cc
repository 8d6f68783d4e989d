#include "weft/kernels/rope.h"

#include <algorithm>

#include "weft/base/math.h"
#include "weft/base/threads.h"
#include "weft/kernels/rope_simd.h"
#include "weft/kernels/row_pointers.h"

namespace weft::kernels {

void rope_table(std::span<const int32_t> positions, std::span<const float> inv_freq, double attention_factor, float* cos,
                float* sin) {
  const int64_t half = static_cast<int64_t>(inv_freq.size());
  parallel_for(static_cast<int64_t>(positions.size()), 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[static_cast<size_t>(t)]) * inv_freq[static_cast<size_t>(i)];
        cos[t * half + i] = static_cast<float>(det_cos(static_cast<double>(angle)) * attention_factor);
        sin[t * half + i] = static_cast<float>(det_sin(static_cast<double>(angle)) * attention_factor);
      }
  });
}

void rope_apply(ConstMatrix x, int64_t heads, const float* cos, const float* sin, int sign, Matrix y) {
  WEFT_CHECK(heads > 0 && x.cols % (2 * heads) == 0, "a row of {} does not hold {} heads of even size", x.cols, heads);
  WEFT_CHECK(x.rows == y.rows && x.cols == y.cols, "rope from [{}, {}] to [{}, {}]", x.rows, x.cols, y.rows, y.cols);
  const int64_t half = x.cols / heads / 2;
  const bool x_bf16 = is_bf16(x), y_bf16 = is_bf16(y);
  const auto& loops = rope_loops();
  parallel_for(x.rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(x.cols, 1)), [&](int64_t b, int64_t e) {
    for (int64_t r = b; r < e; ++r)
      loops.row(row_of(x, r), x_bf16, heads, half, cos + r * half, sin + r * half, sign < 0 ? -1.0f : 1.0f, row_of(y, r), y_bf16);
  });
}

}  // namespace weft::kernels
