#include "weft/kernels/norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "weft/base/threads.h"
#include "weft/kernels/norm_simd.h"
#include "weft/kernels/row_pointers.h"

namespace weft::kernels {
namespace {

constexpr int64_t kGrain = 16384;  // elements a thread takes at least
constexpr int64_t kChunk = 256;    // rows of one dweight chain
constexpr int64_t kColumns = 64;   // columns of one dweight task

int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(cols, 1)); }

}  // namespace

void rms_norm_forward(ConstMatrix x, const float* weight, float eps, float* y_f32, bf16* y_bf16, float* rstd) {
  WEFT_CHECK(!is_bf16(x), "the norm's input must be float32");
  const auto& table = norm_table();
  parallel_for(x.rows, row_grain(x.cols), [&](int64_t b, int64_t e) {
    for (int64_t r = b; r < e; ++r) {
      const float* row = f32_row(x, r);
      const float s = 1.0f / std::sqrt(table.sum_squares(row, x.cols) / static_cast<float>(x.cols) + eps);
      if (rstd) rstd[r] = s;
      table.scale(row, s, weight, y_f32 ? y_f32 + r * x.cols : nullptr, y_bf16 ? y_bf16 + r * x.cols : nullptr, x.cols);
    }
  });
}

void rms_norm_backward(ConstMatrix dy, ConstMatrix x, const float* weight, const float* rstd, float* dx, bool accumulate,
                       float* dweight) {
  WEFT_CHECK(!is_bf16(x), "the norm's input must be float32");
  WEFT_CHECK(dy.rows == x.rows && dy.cols == x.cols, "gradient [{}, {}] of a norm over [{}, {}]", dy.rows, dy.cols, x.rows,
             x.cols);
  const bool dy_bf16 = is_bf16(dy);
  const auto& table = norm_table();
  const int64_t n = x.cols;
  if (dx)
    parallel_for(x.rows, row_grain(n), [&](int64_t b, int64_t e) {
      for (int64_t r = b; r < e; ++r) table.dx(row_of(dy, r), dy_bf16, f32_row(x, r), weight, rstd[r], dx + r * n, accumulate, n);
    });
  if (!dweight || x.rows == 0) return;
  // Tasks are (chunk of rows, block of columns); the chunks' sums are then added ascending.
  const int64_t chunks = (x.rows + kChunk - 1) / kChunk, blocks = (n + kColumns - 1) / kColumns;
  std::vector<float> partial(static_cast<size_t>(chunks * n), 0.0f);
  parallel_for(chunks * blocks, 1, [&](int64_t b, int64_t e) {
    for (int64_t task = b; task < e; ++task) {
      const int64_t chunk = task / blocks, first = task % blocks * kColumns, count = std::min(kColumns, n - first);
      for (int64_t r = chunk * kChunk; r < std::min(x.rows, (chunk + 1) * kChunk); ++r) {
        const char* row = static_cast<const char*>(row_of(dy, r)) + first * (dy_bf16 ? 2 : 4);
        table.dweight(row, dy_bf16, f32_row(x, r) + first, rstd[r], partial.data() + chunk * n + first, count);
      }
    }
  });
  for (int64_t chunk = 0; chunk < chunks; ++chunk)
    for (int64_t i = 0; i < n; ++i) dweight[i] += partial[static_cast<size_t>(chunk * n + i)];
}

}  // namespace weft::kernels
