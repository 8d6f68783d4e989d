#include "weft/kernels/norm_reference.h"

#include <algorithm>
#include <cmath>

#include "weft/kernels/scalar_math.h"

namespace weft::kernels::reference {

using scalar::at;

void rms_norm_forward(ConstMatrix x, const float* weight, float eps, Matrix y, float* rstd) {
  for (int64_t r = 0; r < x.rows; ++r) {
    float lanes[16] = {};
    for (int64_t i = 0; i < x.cols; ++i) lanes[i % 16] = std::fma(at(x, r, i), at(x, r, i), lanes[i % 16]);
    rstd[r] = 1.0f / std::sqrt(scalar::lane_tree(lanes) / static_cast<float>(x.cols) + eps);
    for (int64_t i = 0; i < x.cols; ++i) scalar::put(y, r, i, (at(x, r, i) * rstd[r]) * weight[i]);
  }
}

void rms_norm_backward(ConstMatrix dy, ConstMatrix x, const float* weight, const float* rstd, float* dx, bool accumulate,
                       float* dweight) {
  const int64_t n = x.cols;
  for (int64_t r = 0; r < x.rows; ++r) {
    float lanes[16] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i % 16] = std::fma(at(dy, r, i) * weight[i], at(x, r, i) * rstd[r], lanes[i % 16]);
    const float c = scalar::lane_tree(lanes) / static_cast<float>(n);
    for (int64_t i = 0; i < n; ++i) {
      const float d = rstd[r] * (at(dy, r, i) * weight[i] - (at(x, r, i) * rstd[r]) * c);
      dx[r * n + i] = accumulate ? dx[r * n + i] + d : d;
    }
  }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t chunk = 0; chunk < x.rows; chunk += 256) {
      float sum = 0.0f;
      for (int64_t r = chunk; r < std::min(x.rows, chunk + 256); ++r) sum = sum + at(dy, r, i) * (at(x, r, i) * rstd[r]);
      dweight[i] += sum;
    }
}

}  // namespace weft::kernels::reference
