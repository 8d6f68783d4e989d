#pragma once
// AdamW (arXiv:1711.05101, as torch.optim.AdamW: decay first, bias correction, eps outside the root) and ordered sums.

#include <cstdint>

namespace weft::kernels {

struct AdamWStep {
  double lr = 1e-6, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  int64_t step = 1;             // from 1
  double grad_scale = 1.0;      // multiplies the gradient (clipping)
};
// All fp32, element by element: g = grad * scale; p -= lr*wd*p; m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g*g;
// p -= (lr/(1-b1^t)) * m / (sqrt(v)/sqrt(1-b2^t) + eps). Scalars are computed in double and rounded once. No FMA.
void adamw(const AdamWStep& s, const float* grad, float* param, float* m, float* v, int64_t n);

// Sum of squares in double: blocks of 4096 elements, each one ascending double chain in 16 lanes and the lane tree, blocks added
// ascending: independent of threads and target.
double sum_of_squares(const float* x, int64_t n);
// Whether every element is finite.
bool all_finite(const float* x, int64_t n);

}  // namespace weft::kernels
