#pragma once
// What operations move, for plans: CommStats counts the same when they run.

#include <cstdint>

namespace weft {

// Bytes that one rank of the group sends in an all-reduce, and as many that it receives. width: of an element [bytes].
int64_t all_reduce_bytes(int64_t count, int64_t width, int ranks, int rank);

}  // namespace weft
