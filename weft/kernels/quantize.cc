#include "weft/kernels/quantize.h"

#include <algorithm>

#include "weft/kernels/quantize_simd.h"

namespace weft::kernels {

float max_magnitude(const float* x, int64_t n) { return quantize_table().max_magnitude(x, n); }

float row_scale(float magnitude) {
  const float scale = magnitude / 127.0f;
  return scale >= 0x1p-126f ? scale : 0.0f;
}

void quantize(const float* x, float scale, int8_t* q, int64_t n) {
  if (scale > 0.0f)
    quantize_table().quantize(x, scale, q, n);
  else
    std::fill_n(q, n, int8_t{0});
}

}  // namespace weft::kernels
