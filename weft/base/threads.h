#pragma once
// Threads of a rank. Kernels split their *outputs* over threads, so the number of threads changes no bit (docs/numerics.md).

#include <cstdint>
#include <functional>

#include "weft/base/cores.h"

namespace weft {

// Sets how many threads parallel_for uses in the calling thread and those it starts; 0 means available_cores(). Each rank sets its own.
void set_num_threads(int n);
int num_threads();

// Flush-to-zero and denormals-are-zero, which vdpbf16ps implies and which therefore holds everywhere. First thing in main and in every
// thread of ours.
void set_denormals_flushed();
bool denormals_flushed();

// Calls body(begin, end) on disjoint ranges that cover [0, n), in at most num_threads() threads, each range at least `grain` long
// (but the last). Ranges are dealt out in order of need, so uneven work balances; body must not depend on how ranges are cut.
// Runs inline when called from inside a parallel_for. The first exception is rethrown after all ranges have ended.
void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

}  // namespace weft
