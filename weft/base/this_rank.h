#pragma once
// Which rank of a job the calling thread works for: what its log lines and trace events are told apart by. Set where ranks start
// (comm/launch.cc); threads that parallel_for starts take it over.

#include <atomic>

namespace weft {
namespace detail {
inline thread_local int thread_rank = -1;
inline std::atomic<int> process_rank{-1};
}  // namespace detail

// -1: the program has one rank, or the thread works for all of its ranks.
inline int this_rank() {
  return detail::thread_rank >= 0 ? detail::thread_rank : detail::process_rank.load(std::memory_order_relaxed);
}
inline void set_this_rank(int rank) { detail::thread_rank = rank; }
// Where ranks are processes: of all threads that have none of their own.
inline void set_process_rank(int rank) { detail::process_rank.store(rank, std::memory_order_relaxed); }

}  // namespace weft
