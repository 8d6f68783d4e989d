#pragma once
// The row loops of moe_simd.cc, one table per SIMD target (internal).

#include <cstdint>

#include "weft/kernels/target.h"

namespace weft::kernels {

struct MoeTable {
  // y = gate * row, or y += the rounded product.
  void (*combine)(const void* row, bool row_bf16, float gate, float* y, bool first, int64_t n);
  void (*scale)(const float* dy, float gate, void* out, bool out_bf16, int64_t n);
  float (*dot)(const float* a, const void* b, bool b_bf16, int64_t n);
};
namespace portable {
extern const MoeTable kMoe;
}
namespace avx2 {
extern const MoeTable kMoe;
}
namespace avx512 {
extern const MoeTable kMoe;
}

inline const MoeTable& moe_table() { return select(portable::kMoe, avx2::kMoe, avx512::kMoe); }

}  // namespace weft::kernels
