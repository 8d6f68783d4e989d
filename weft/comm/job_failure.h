#pragma once
// The one reason for which a job of several ranks ends. Shared by the ranks of a process; whoever notices first sets it, and every
// rank that waits for a peer, or enqueues anything, throws it as PeerLostError.

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "weft/base/error.h"

namespace weft {

// A peer died, hung, threw, returned early or called another operation. Exit code 76; the message names the culprit.
class PeerLostError : public Error {
 public:
  explicit PeerLostError(std::string message) : Error(std::move(message), kExitPeerLost) {}
};

class JobFailure {
 public:
  // Keeps the first reason and the exit code that goes with it. True when this was it.
  bool fail(std::string reason, int exit_code = kExitPeerLost) {
    std::lock_guard lock(mutex_);
    if (failed_.load()) return false;
    reason_ = std::move(reason);
    exit_code_ = exit_code;
    failed_.store(true);
    return true;
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  std::string reason() const {
    std::lock_guard lock(mutex_);
    return reason_;
  }
  int exit_code() const {
    std::lock_guard lock(mutex_);
    return exit_code_;
  }

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::string reason_;
  int exit_code_ = kExitDone;
};

}  // namespace weft
