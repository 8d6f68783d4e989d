#pragma once
// Ranks that work on files together. All are collective over `world`; null is one rank alone.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weft/comm/communicator.h"

namespace weft {

// Runs fn on each rank and waits for all. Where it threw on any, all throw: that rank its own error, the others a SystemError
// with the lowest such rank and its message. fn communicates only if that cannot keep another rank waiting.
void together(const Communicator* world, const std::function<void()>& fn);

// Rank 0's.
std::string broadcast_text(const Communicator* world, std::string text);
// Whether all say so.
bool on_all_ranks(const Communicator* world, bool mine);
// Whether the path, made by rank 0 under a name that was never there before, is seen by every rank. A network file system may be
// late: a rank looks for a second. `path` is each rank's own.
bool seen_by_all(const Communicator* world, const std::string& path);
// Element by element, mod 2^64; as many on every rank.
std::vector<uint64_t> sum_over_ranks(const Communicator* world, const std::vector<uint64_t>& mine);

}  // namespace weft
