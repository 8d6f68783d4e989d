#pragma once
// The loops of elementwise_simd.cc, one table per SIMD target (internal).

#include <cstdint>

#include "weft/base/dtype.h"
#include "weft/kernels/target.h"

namespace weft::kernels {

struct ElementwiseTable {
  void (*to_bf16)(const float* x, bf16* y, int64_t n);
  void (*to_f32)(const bf16* x, float* y, int64_t n);
  void (*swiglu)(const float* gate, const float* up, void* y, bool y_bf16, int64_t n);
  void (*swiglu_backward)(const void* dy, bool dy_bf16, const float* gate, const float* up, void* dgate, bool dgate_bf16,
                          void* dup, bool dup_bf16, int64_t n);
  void (*add)(const float* a, const float* b, float* y, int64_t n);
  void (*accumulate)(const void* x, bool x_bf16, float* y, int64_t n);
  void (*exp)(const float* x, float* y, int64_t n);
  void (*log)(const float* x, float* y, int64_t n);
};
namespace portable {
extern const ElementwiseTable kElementwise;
}
namespace avx2 {
extern const ElementwiseTable kElementwise;
}
namespace avx512 {
extern const ElementwiseTable kElementwise;
}

inline const ElementwiseTable& elementwise_table() {
  return select(portable::kElementwise, avx2::kElementwise, avx512::kElementwise);
}

}  // namespace weft::kernels
