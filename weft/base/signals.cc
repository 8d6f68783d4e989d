#include "weft/base/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "weft/base/error.h"

namespace weft {
namespace {

std::atomic<int> first_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "the handler may use only lock-free atomics");

// Async-signal-safe: a lock-free exchange and _exit.
void on_signal(int signal) {
  int none = 0;
  if (!first_signal.compare_exchange_strong(none, signal)) _exit(128 + signal);
}

}  // namespace

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigfillset(&action.sa_mask);
  // Restarts reads and writes, so that a stop never looks like a failed file; poll and sleep still end early.
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    struct sigaction now {};
    if (signal == SIGHUP && sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN) continue;
    if (sigaction(signal, &action, nullptr) != 0)
      throw SystemError(fmt::format("cannot install a handler for signal {}: {}", signal, std::strerror(errno)));
  }
}

bool stop_requested() { return first_signal.load(std::memory_order_relaxed) != 0; }
int stop_signal() { return first_signal.load(); }

const char* stop_signal_name() {
  switch (stop_signal()) {
    case 0: return "a signal of another rank";
    case SIGINT: return "SIGINT";
    case SIGTERM: return "SIGTERM";
    case SIGUSR1: return "SIGUSR1";
    case SIGHUP: return "SIGHUP";
    default: return "signal";
  }
}

void request_stop(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
}

void clear_stop_request() { first_signal.store(0); }

}  // namespace weft
