#pragma once
// The loops of stream_copy_simd.cc, one table per SIMD target (internal).

#include <cstddef>
#include <cstdint>

#include "weft/kernels/target.h"

namespace weft::kernels {

struct StreamCopyTable {
  void (*copy)(std::byte* to, const std::byte* from, int64_t bytes);
  void (*finish)();
};
namespace portable {
extern const StreamCopyTable kStreamCopy;
}
namespace avx2 {
extern const StreamCopyTable kStreamCopy;
}
namespace avx512 {
extern const StreamCopyTable kStreamCopy;
}

inline const StreamCopyTable& stream_copy_table() {
  return select(portable::kStreamCopy, avx2::kStreamCopy, avx512::kStreamCopy);
}

}  // namespace weft::kernels
