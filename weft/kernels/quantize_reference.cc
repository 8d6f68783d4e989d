#include "weft/kernels/quantize_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace weft::kernels::reference {

float max_magnitude(const float* x, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return std::bit_cast<float>(most);
}

void quantize(const float* x, float scale, int8_t* q, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    q[i] = scale > 0.0f ? static_cast<int8_t>(std::clamp(std::nearbyint(x[i] / scale), -127.0f, 127.0f)) : int8_t{0};
}

}  // namespace weft::kernels::reference
