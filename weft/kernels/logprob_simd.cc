#include "weft/kernels/logprob_simd.h"

#include <bit>

#include "weft/kernels/simd.h"
#include "weft/kernels/vec_math.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {
namespace {

WEFT_INLINE f32 load_or_lowest(const float* z, int64_t i, int64_t n) {
  return n - i >= 16 ? load(z + i) : load_first(z + i, n - i, -scalar::kInf);
}

VocabSum block(const float* z, int64_t n, bool entropy) {
  f32 top = set1(-scalar::kInf);
  for (int64_t i = 0; i < n; i += 16) top = max(load_or_lowest(z, i, n), top);
  VocabSum out;
  out.max = max_lanes(top);
  if (out.max == -scalar::kInf) return out;
  const f32 m = set1(out.max);
  f32 sum = zero(), weighted = zero();
  for (int64_t i = 0; i < n; i += 16) {
    const f32 v = load_or_lowest(z, i, n), p = exp(sub(v, m));
    sum = add(sum, p);
    if (entropy) weighted = add(weighted, select(less(zero(), p), mul(p, v), zero()));
  }
  out.sum = sum_lanes(sum);
  if (entropy) out.weighted = sum_lanes(weighted);
  return out;
}

void scale(float* z, float factor, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) store_at(z, false, i, n, mul(load_at(z, false, i, n), set1(factor)));
}

void dlogit(float* z, float inv_t, float lse, float dlp, float dh, float shift, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const f32 v = load_at(z, false, i, n), p = exp(sub(v, set1(lse)));
    const f32 slope = add(set1(dlp), mul(set1(dh), add(v, set1(shift))));
    const f32 d = mul(set1(inv_t), sub(zero(), mul(p, slope)));
    store_at(z, false, i, n, select(less(zero(), p), d, zero()));
  }
}

void gumbel(const float* z, const float* u, float* scores, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const f32 t = sub(zero(), log(load_at(u, false, i, n)));
    store_at(scores, false, i, n, sub(load_at(z, false, i, n), log(t)));
  }
}

}  // namespace

extern const LogprobTable kLogprob;
const LogprobTable kLogprob = {block, scale, dlogit, gumbel};

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE

#include "weft/kernels/simd_end.h"
