#include "weft/kernels/rope_reference.h"

#include "weft/kernels/scalar_math.h"

namespace weft::kernels::reference {

void rope_apply(ConstMatrix x, int64_t heads, const float* cos, const float* sin, int sign, Matrix y) {
  const int64_t d = x.cols / heads, half = d / 2;
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 0; i < half; ++i) {
        const float a = scalar::at(x, r, head * d + i), b = scalar::at(x, r, head * d + half + i);
        const float c = cos[r * half + i], s = sign < 0 ? -sin[r * half + i] : sin[r * half + i];
        scalar::put(y, r, head * d + i, a * c - b * s);
        scalar::put(y, r, head * d + half + i, b * c + a * s);
      }
}

}  // namespace weft::kernels::reference
