#pragma once
// A counter that threads sleep on: read value(), look whether there is work, else wait(value): a signal in between is never lost.
// signal() costs one atomic add while nobody sleeps. Any thread may call anything.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace weft {

class Event {
 public:
  int32_t value() const { return value_.load(); }

  void signal() {
    value_.fetch_add(1);
    if (sleepers_.load() > 0) futex(FUTEX_WAKE_PRIVATE, INT_MAX, nullptr);
  }

  // Returns when the counter is no longer `seen`, after `seconds`, or for no reason.
  void wait(int32_t seen, double seconds) {
    const auto whole = static_cast<time_t>(seconds);
    const timespec limit{whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
    sleepers_.fetch_add(1);
    if (value_.load() == seen) futex(FUTEX_WAIT_PRIVATE, seen, &limit);
    sleepers_.fetch_sub(1);
  }

 private:
  void futex(int what, int32_t argument, const timespec* limit) {
    static_assert(sizeof(value_) == sizeof(int32_t));
    ::syscall(SYS_futex, reinterpret_cast<int32_t*>(&value_), what, argument, limit, nullptr, 0);
  }

  std::atomic<int32_t> value_{0};
  std::atomic<int32_t> sleepers_{0};
};

}  // namespace weft
