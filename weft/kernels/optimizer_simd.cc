#include "weft/kernels/optimizer_simd.h"

#include <bit>

#include "weft/kernels/simd.h"
#include "weft/kernels/vec_math.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {
namespace {

void adamw(const AdamWScalars& s, const float* grad, float* param, float* m, float* v, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const f32 g = mul(load_at(grad, false, i, n), set1(s.grad_scale));
    f32 p = load_at(param, false, i, n);
    p = sub(p, mul(set1(s.decay), p));
    const f32 m1 = add(mul(set1(s.beta1), load_at(m, false, i, n)), mul(set1(s.one_minus_beta1), g));
    const f32 v1 = add(mul(set1(s.beta2), load_at(v, false, i, n)), mul(mul(set1(s.one_minus_beta2), g), g));
    const f32 denominator = add(div(sqrt(v1), set1(s.sqrt_correction)), set1(s.eps));
    store_at(m, false, i, n, m1);
    store_at(v, false, i, n, v1);
    store_at(param, false, i, n, sub(p, div(mul(set1(s.step_size), m1), denominator)));
  }
}

}  // namespace

extern const OptimizerTable kOptimizer;
const OptimizerTable kOptimizer = {adamw};

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE

#include "weft/kernels/simd_end.h"
