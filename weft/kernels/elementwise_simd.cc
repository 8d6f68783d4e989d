#include "weft/kernels/elementwise_simd.h"

#include <bit>
#include <limits>

#include "weft/kernels/simd.h"
#include "weft/kernels/vec_math.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {
namespace {

void to_bf16(const float* x, bf16* y, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store_bf16(y + i, load(x + i));
  for (; i < n; ++i) y[i] = float_to_bf16(x[i]);
}

void to_f32(const bf16* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(y + i, load_bf16(x + i));
  for (; i < n; ++i) y[i] = bf16_to_float(x[i]);
}

void swiglu(const float* gate, const float* up, void* y, bool y_bf16, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const f32 g = load_at(gate, false, i, n);
    const f32 silu = div(g, add(set1(1.0f), exp(sub(zero(), g))));
    store_at(y, y_bf16, i, n, mul(silu, load_at(up, false, i, n)));
  }
}

void swiglu_backward(const void* dy, bool dy_bf16, const float* gate, const float* up, void* dgate, bool dgate_bf16, void* dup,
                     bool dup_bf16, int64_t n) {
  const f32 one = set1(1.0f);
  for (int64_t i = 0; i < n; i += 16) {
    const f32 d = load_at(dy, dy_bf16, i, n), g = load_at(gate, false, i, n), u = load_at(up, false, i, n);
    const f32 denominator = add(one, exp(sub(zero(), g)));
    const f32 sigmoid = div(one, denominator), silu = div(g, denominator);
    const f32 slope = mul(sigmoid, add(one, mul(g, sub(one, sigmoid))));
    store_at(dup, dup_bf16, i, n, mul(d, silu));
    store_at(dgate, dgate_bf16, i, n, mul(mul(d, u), slope));
  }
}

void add_all(const float* a, const float* b, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) store_at(y, false, i, n, add(load_at(a, false, i, n), load_at(b, false, i, n)));
}

void accumulate(const void* x, bool x_bf16, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) store_at(y, false, i, n, add(load_at(y, false, i, n), load_at(x, x_bf16, i, n)));
}

void exp_all(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) store_at(y, false, i, n, exp(load_at(x, false, i, n)));
}

void log_all(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) store_at(y, false, i, n, log(load_at(x, false, i, n)));
}

}  // namespace

extern const ElementwiseTable kElementwise;
const ElementwiseTable kElementwise = {to_bf16, to_f32, swiglu, swiglu_backward, add_all, accumulate, exp_all, log_all};

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE

#include "weft/kernels/simd_end.h"
