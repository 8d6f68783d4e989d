#pragma once
// The loops of quantize_simd.cc, one table per SIMD target (internal).

#include <cstdint>

#include "weft/kernels/target.h"

namespace weft::kernels {

struct QuantizeTable {
  float (*max_magnitude)(const float* x, int64_t n);
  void (*quantize)(const float* x, float scale, int8_t* q, int64_t n);  // scale > 0
};
namespace portable {
extern const QuantizeTable kQuantize;
}
namespace avx2 {
extern const QuantizeTable kQuantize;
}
namespace avx512 {
extern const QuantizeTable kQuantize;
}

inline const QuantizeTable& quantize_table() { return select(portable::kQuantize, avx2::kQuantize, avx512::kQuantize); }

}  // namespace weft::kernels
