#include "weft/kernels/elementwise_reference.h"

#include "weft/kernels/scalar_math.h"

namespace weft::kernels::reference {

using scalar::at;
using scalar::put;

void swiglu_forward(ConstMatrix gate, ConstMatrix up, Matrix y) {
  for (int64_t r = 0; r < gate.rows; ++r)
    for (int64_t c = 0; c < gate.cols; ++c) {
      const float g = at(gate, r, c);
      put(y, r, c, (g / (1.0f + scalar::exp(0.0f - g))) * at(up, r, c));
    }
}

void swiglu_backward(ConstMatrix dy, ConstMatrix gate, ConstMatrix up, Matrix dgate, Matrix dup) {
  for (int64_t r = 0; r < gate.rows; ++r)
    for (int64_t c = 0; c < gate.cols; ++c) {
      const float g = at(gate, r, c), d = at(dy, r, c), denominator = 1.0f + scalar::exp(0.0f - g);
      const float sigmoid = 1.0f / denominator;
      put(dup, r, c, d * (g / denominator));
      put(dgate, r, c, (d * at(up, r, c)) * (sigmoid * (1.0f + g * (1.0f - sigmoid))));
    }
}

void embedding_backward(std::span<const int32_t> ids, ConstMatrix dy, float* dtable) {
  for (int64_t t = 0; t < dy.rows; ++t)
    for (int64_t c = 0; c < dy.cols; ++c) dtable[ids[static_cast<size_t>(t)] * dy.cols + c] += at(dy, t, c);
}

}  // namespace weft::kernels::reference
