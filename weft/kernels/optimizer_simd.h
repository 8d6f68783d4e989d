#pragma once
// The loop of optimizer_simd.cc, one table per SIMD target (internal).

#include <cstdint>

#include "weft/kernels/target.h"

namespace weft::kernels {

// The step's scalars, rounded once to fp32.
struct AdamWScalars {
  float grad_scale, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_correction, eps;
};

struct OptimizerTable {
  void (*adamw)(const AdamWScalars& s, const float* grad, float* param, float* m, float* v, int64_t n);
};
namespace portable {
extern const OptimizerTable kOptimizer;
}
namespace avx2 {
extern const OptimizerTable kOptimizer;
}
namespace avx512 {
extern const OptimizerTable kOptimizer;
}

inline const OptimizerTable& optimizer_table() {
  return select(portable::kOptimizer, avx2::kOptimizer, avx512::kOptimizer);
}

}  // namespace weft::kernels
