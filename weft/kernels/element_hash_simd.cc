#include "weft/kernels/element_hash_simd.h"

#include <cstring>

#include "weft/kernels/element_hash_keys.h"
#include "weft/kernels/simd.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {
namespace {

template <typename Bits>
uint64_t one_by_one(const std::byte* at, int64_t n, int64_t place, uint64_t block) {
  const uint32_t *low = kHashKeys.low.data() + place, *high = kHashKeys.high.data() + place;
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i, at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, at, sizeof(Bits));
    sum += ((static_cast<uint64_t>(high[i]) << 32 | low[i]) ^ block) * bits;
  }
  return sum;
}

#if WEFT_SIMD_TARGET == 0

template <typename Bits, bool kCopies>
uint64_t run(std::byte* to, const std::byte* at, int64_t n, int64_t place, uint64_t block) {
  if (kCopies) std::memcpy(to, at, static_cast<size_t>(n) * sizeof(Bits));
  return one_by_one<Bits>(at, n, place, block);
}

#else

// Lanes of 32 bits, and what is done with them.
#if WEFT_SIMD_TARGET == 1
using Words = __m256i;
WEFT_INLINE Words zero_words() { return _mm256_setzero_si256(); }
WEFT_INLINE Words set_words(uint32_t x) { return _mm256_set1_epi32(static_cast<int32_t>(x)); }
WEFT_INLINE Words load_words(const uint32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
WEFT_INLINE Words load_as_words(const std::byte* p, uint8_t) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
WEFT_INLINE Words load_as_words(const std::byte* p, uint16_t) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
WEFT_INLINE Words load_as_words(const std::byte* p, uint32_t) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
WEFT_INLINE Words exclusive_or(Words a, Words b) { return _mm256_xor_si256(a, b); }
WEFT_INLINE Words odd_to_even(Words a) { return _mm256_srli_epi64(a, 32); }
WEFT_INLINE Words multiply_even(Words a, Words b) { return _mm256_mul_epu32(a, b); }  // 64 bits each
WEFT_INLINE Words multiply_low(Words a, Words b) { return _mm256_mullo_epi32(a, b); }
WEFT_INLINE Words add32(Words a, Words b) { return _mm256_add_epi32(a, b); }
WEFT_INLINE Words add64(Words a, Words b) { return _mm256_add_epi64(a, b); }
#else
using Words = __m512i;
WEFT_INLINE Words zero_words() { return _mm512_setzero_si512(); }
WEFT_INLINE Words set_words(uint32_t x) { return _mm512_set1_epi32(static_cast<int32_t>(x)); }
WEFT_INLINE Words load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
WEFT_INLINE Words load_as_words(const std::byte* p, uint8_t) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
WEFT_INLINE Words load_as_words(const std::byte* p, uint16_t) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
WEFT_INLINE Words load_as_words(const std::byte* p, uint32_t) { return _mm512_loadu_si512(p); }
WEFT_INLINE Words exclusive_or(Words a, Words b) { return _mm512_xor_si512(a, b); }
WEFT_INLINE Words odd_to_even(Words a) { return _mm512_srli_epi64(a, 32); }
WEFT_INLINE Words multiply_even(Words a, Words b) { return _mm512_mul_epu32(a, b); }
WEFT_INLINE Words multiply_low(Words a, Words b) { return _mm512_mullo_epi32(a, b); }
WEFT_INLINE Words add32(Words a, Words b) { return _mm512_add_epi32(a, b); }
WEFT_INLINE Words add64(Words a, Words b) { return _mm512_add_epi64(a, b); }
#endif

// The sums of one chain; two chains hide each other's latency.
struct HashSums {
  Words even, odd;  // 64 bits
  Words upper;      // 32 bits
};

// Bits of up to 32 times a key of 64 are bits * low + (bits * high) * 2^32: there is no product of 64 bits in AVX2, and one of
// three steps in AVX-512. Of the high halves' sum only 32 bits reach the result.
WEFT_INLINE void hash_words(HashSums& sums, Words bits, Words key_low, Words key_high) {
  sums.even = add64(sums.even, multiply_even(bits, key_low));
  sums.odd = add64(sums.odd, multiply_even(odd_to_even(bits), odd_to_even(key_low)));
  sums.upper = add32(sums.upper, multiply_low(bits, key_high));
}

template <typename Bits, bool kCopies>
uint64_t run(std::byte* to, const std::byte* at, int64_t n, int64_t place, uint64_t block) {
  constexpr int64_t kWords = sizeof(Words) / 4, kWidth = sizeof(Bits), kStep = 2 * kWords * kWidth;  // elements and bytes
  // The hardware fetches ahead within a page of 4 KB; asking for the next page's lines reads memory a quarter faster.
  constexpr int64_t kAhead = 4096;
  const uint32_t *low = kHashKeys.low.data() + place, *high = kHashKeys.high.data() + place;
  const Words block_low = set_words(static_cast<uint32_t>(block)), block_high = set_words(static_cast<uint32_t>(block >> 32));
  HashSums a{zero_words(), zero_words(), zero_words()}, b = a;
  int64_t i = 0;
  for (; i + 2 * kWords <= n; i += 2 * kWords) {
    for (int64_t line = 0; line < kStep; line += 64) _mm_prefetch(at + i * kWidth + kAhead + line, _MM_HINT_T0);
    if (kCopies) std::memcpy(to + i * kWidth, at + i * kWidth, kStep);
    hash_words(a, load_as_words(at + i * kWidth, Bits{}), exclusive_or(load_words(low + i), block_low),
               exclusive_or(load_words(high + i), block_high));
    const int64_t j = i + kWords;
    hash_words(b, load_as_words(at + j * kWidth, Bits{}), exclusive_or(load_words(low + j), block_low),
               exclusive_or(load_words(high + j), block_high));
  }
  uint64_t sums[kWords / 2], sum = 0;
  uint32_t uppers[kWords];
  const Words both = add64(add64(a.even, a.odd), add64(b.even, b.odd)), upper = add32(a.upper, b.upper);
  std::memcpy(sums, &both, sizeof(both));
  std::memcpy(uppers, &upper, sizeof(upper));
  for (const uint64_t s : sums) sum += s;
  for (const uint32_t u : uppers) sum += static_cast<uint64_t>(u) << 32;
  if (kCopies && i < n) std::memcpy(to + i * kWidth, at + i * kWidth, static_cast<size_t>((n - i) * kWidth));
  return sum + one_by_one<Bits>(at + i * kWidth, n - i, place + i, block);
}

#endif

template <typename Bits>
uint64_t hash(const std::byte* at, int64_t n, int64_t place, uint64_t block) {
  return run<Bits, false>(nullptr, at, n, place, block);
}
uint64_t hash_of_8(const std::byte* at, int64_t n, int64_t place, uint64_t block) {
  return one_by_one<uint64_t>(at, n, place, block);
}
uint64_t copy_and_hash_of_8(std::byte* to, const std::byte* at, int64_t n, int64_t place, uint64_t block) {
  std::memcpy(to, at, static_cast<size_t>(n) * 8);
  return one_by_one<uint64_t>(at, n, place, block);
}

}  // namespace

extern const ElementHashTable kElementHash;
const ElementHashTable kElementHash = {{hash<uint8_t>, hash<uint16_t>, hash<uint32_t>, hash_of_8},
                                       {run<uint8_t, true>, run<uint16_t, true>, run<uint32_t, true>, copy_and_hash_of_8}};

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE

#include "weft/kernels/simd_end.h"
