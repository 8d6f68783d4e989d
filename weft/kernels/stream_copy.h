#pragma once
// Copies of more than the caches hold. An ordinary store reads the line that it is about to overwrite, so that a copy moves three
// bytes over the memory bus for each one; a streaming store moves two. It also leaves in the cache what was there: use it where
// the copy is not read soon.

#include <cstddef>
#include <cstdint>

namespace weft::kernels {

// Streaming stores reach other threads in any order: only after finish_streams(), called by the thread that copied, may it tell
// them of the copies. `to` and `from` do not overlap.
void stream_copy(std::byte* to, const std::byte* from, int64_t bytes);
void finish_streams();

}  // namespace weft::kernels
