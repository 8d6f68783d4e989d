#include "weft/kernels/stream_copy.h"

#include "weft/kernels/stream_copy_simd.h"

namespace weft::kernels {

void stream_copy(std::byte* to, const std::byte* from, int64_t bytes) { stream_copy_table().copy(to, from, bytes); }
void finish_streams() { stream_copy_table().finish(); }

}  // namespace weft::kernels
