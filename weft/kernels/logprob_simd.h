#pragma once
// The loops of logprob_simd.cc, one table per SIMD target (internal), and what they share with logprob.cc.

#include <cstdint>

#include "weft/kernels/logprob.h"
#include "weft/kernels/scalar_math.h"
#include "weft/kernels/target.h"

namespace weft::kernels {

struct LogprobTable {
  // At most 512 logits; weighted only where asked for.
  VocabSum (*block)(const float* z, int64_t n, bool entropy);
  void (*scale)(float* z, float factor, int64_t n);
  // z becomes inv_t * (-dlp * p - dh * p * (z + shift)) with p = exp(z - lse); 0 where p = 0.
  void (*dlogit)(float* z, float inv_t, float lse, float dlp, float dh, float shift, int64_t n);
  // scores[i] = z[i] - log(-log(u[i])).
  void (*gumbel)(const float* z, const float* u, float* scores, int64_t n);
};
namespace portable {
extern const LogprobTable kLogprob;
}
namespace avx2 {
extern const LogprobTable kLogprob;
}
namespace avx512 {
extern const LogprobTable kLogprob;
}

inline const LogprobTable& logprob_table() {
  return select(portable::kLogprob, avx2::kLogprob, avx512::kLogprob);
}

}  // namespace weft::kernels
