#include "weft/kernels/stream_copy_simd.h"

#include <algorithm>
#include <cstring>

#include "weft/kernels/simd.h"

namespace weft::kernels::WEFT_SIMD_NAMESPACE {
namespace {

void copy_cached(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

#if WEFT_SIMD_TARGET == 0

void copy(std::byte* to, const std::byte* from, int64_t bytes) { copy_cached(to, from, bytes); }
void finish() {}

#else

constexpr int64_t kLine = 64;  // bytes that leave as one

WEFT_INLINE void stream_line(std::byte* to, const std::byte* from) {
#if WEFT_SIMD_TARGET == 1
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), a);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), b);
#else
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
#endif
}

// Whole lines of the target are streamed, its ends are stored.
void copy(std::byte* to, const std::byte* from, int64_t bytes) {
  int64_t at = std::min(bytes, static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) % kLine));
  copy_cached(to, from, at);
  for (; at + 2 * kLine <= bytes; at += 2 * kLine) {
    stream_line(to + at, from + at);
    stream_line(to + at + kLine, from + at + kLine);
  }
  copy_cached(to + at, from + at, bytes - at);
}
void finish() { _mm_sfence(); }

#endif

}  // namespace

extern const StreamCopyTable kStreamCopy;
const StreamCopyTable kStreamCopy = {copy, finish};

}  // namespace weft::kernels::WEFT_SIMD_NAMESPACE

#include "weft/kernels/simd_end.h"
