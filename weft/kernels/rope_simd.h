#pragma once
// The loop of rope_simd.cc, one table per SIMD target (internal).

#include <cstdint>

#include "weft/kernels/target.h"

namespace weft::kernels {

struct RopeTable {
  // One row of `heads` heads of head_dim 2*half; y may be x. cos, sin [half]; sin is multiplied by sign.
  void (*row)(const void* x, bool x_bf16, int64_t heads, int64_t half, const float* cos, const float* sin, float sign, void* y,
              bool y_bf16);
};
namespace portable {
extern const RopeTable kRope;
}
namespace avx2 {
extern const RopeTable kRope;
}
namespace avx512 {
extern const RopeTable kRope;
}

inline const RopeTable& rope_loops() { return select(portable::kRope, avx2::kRope, avx512::kRope); }

}  // namespace weft::kernels
