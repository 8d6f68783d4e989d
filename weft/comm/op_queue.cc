#include "weft/comm/op_queue.h"

#include <sched.h>

#include <algorithm>
#include <exception>

#include "weft/base/clock.h"
#include "weft/base/threads.h"
#include "weft/base/trace.h"

namespace weft {
namespace {

// Smaller operations are done by the rank that enqueues them where the peers are there already: copying 64 KB takes about 3 us,
// waking a thread for it as long.
constexpr int64_t kOwnBytes = 128 << 10;
constexpr double kSleep = 0.2;  // seconds; also how soon a failed job is noticed

TraceDetail detail_of(const Op& op) { return {op.group->axis, op.purpose, op.bytes}; }

// Adds the time until its end to a rank's waiting.
class WaitClock {
 public:
  explicit WaitClock(std::atomic<int64_t>* total) : total_(total), begin_ns_(steady_ns()) {}
  ~WaitClock() { total_->fetch_add(steady_ns() - begin_ns_, std::memory_order_relaxed); }
  WaitClock(const WaitClock&) = delete;
  WaitClock& operator=(const WaitClock&) = delete;
  int64_t begin_ns() const { return begin_ns_; }

 private:
  std::atomic<int64_t>* total_;
  const int64_t begin_ns_;
};

}  // namespace

OpQueue::OpQueue(CommEngine* engine, JobFailure* failure, OpRing* ring, bool background, bool core_per_rank)
    : engine_(engine), failure_(failure), ring_(ring), background_(background), spins_(core_per_rank ? 500 : 30) {
  if (background_) thread_ = std::thread([this] { loop(); });
}

// One wait between two looks at the operations, which take about 0.1 us; `round` counts looks without effect.
void OpQueue::back_off(int round, Event& event, int32_t seen) {
  if (round < spins_) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  } else if (round < spins_ + 200) {
    ::sched_yield();
  } else if (engine_->must_poll()) {
    event.wait(seen, round < spins_ + 1000 ? 20e-6 : 200e-6);
  } else {
    event.wait(seen, kSleep);
  }
}

void OpQueue::stop() {
  stopping_.store(true);
  thread_event_.signal();
  if (thread_.joinable()) thread_.join();
}

void OpQueue::enqueue(std::shared_ptr<Op> op) {
  if (failure_->failed()) throw PeerLostError(failure_->reason());
  ring_->enqueued(op.get());
  if (trace_on()) op->launched_ns = trace_clock_ns();
  engine_->post(*op);
  const bool small = op->bytes <= kOwnBytes;
  {
    std::lock_guard lock(inbox_mutex_);
    inbox_.push_back(op);
    open_count_.fetch_add(1);
  }
  bool tried = false;
  if (!background_ || small) {
    const WaitClock clock(&waited_ns_);
    tried = try_advance();
  }
  if (background_ && !op->done.load(std::memory_order_acquire) && (!tried || engine_->must_poll())) thread_event_.signal();
}

// False when another thread is at work.
bool OpQueue::try_advance() {
  std::unique_lock lock(work_mutex_, std::try_to_lock);
  if (!lock) return false;
  while (advance_all()) {
  }
  return true;
}

bool OpQueue::advance_all() {
  if (failure_->failed()) return false;
  {
    std::lock_guard lock(inbox_mutex_);
    open_.insert(open_.end(), inbox_.begin(), inbox_.end());
    inbox_.clear();
  }
  bool moved = false;
  try {
    std::erase_if(open_, [&](const std::shared_ptr<Op>& op) {
      if (!engine_->advance(*op, &moved)) return false;
      ring_->finished(*op);
      if (op->launched_ns != 0)
        trace_operation(op_kind_name(op->kind).data(), op->group->ranks[static_cast<size_t>(op->group->me)], op->launched_ns,
                        trace_clock_ns(), detail_of(*op));
      open_count_.fetch_sub(1);
      op->done.store(true, std::memory_order_release);
      return moved = true;
    });
  } catch (const std::exception& error) {
    failure_->fail(error.what());
    return false;
  }
  return moved;
}

void OpQueue::wait(Op& op) {
  if (op.done.load(std::memory_order_acquire)) return;
  ring_->started_waiting(op);
  const WaitClock clock(&waited_ns_);
  waiting_.fetch_add(1);
  int round = 0;
  while (!op.done.load(std::memory_order_acquire) && !failure_->failed()) {
    const int32_t seen = caller_event_.value();
    bool moved = false;
    if (std::unique_lock lock(work_mutex_, std::try_to_lock); lock) moved = advance_all();
    if (moved || op.done.load(std::memory_order_acquire)) {
      round = 0;
    } else {
      back_off(round++, caller_event_, seen);
    }
  }
  waiting_.fetch_sub(1);
  ring_->stopped_waiting();
  if (trace_on()) trace_span("wait", "wait", clock.begin_ns(), trace_clock_ns(), detail_of(op));
  if (background_ && open_count_.load() > 0) thread_event_.signal();
  if (!op.done.load(std::memory_order_acquire)) {
    withdraw_all();
    throw PeerLostError(failure_->reason());
  }
}

void OpQueue::drain() {
  for (;;) {
    std::shared_ptr<Op> last;
    {
      std::scoped_lock lock(work_mutex_, inbox_mutex_);
      if (!inbox_.empty()) {
        last = inbox_.back();
      } else if (!open_.empty()) {
        last = open_.back();
      }
    }
    if (!last) return;
    wait(*last);
  }
}

void OpQueue::withdraw(Op& op) {
  std::scoped_lock lock(work_mutex_, inbox_mutex_);
  if (op.done.load(std::memory_order_acquire)) return;
  const auto is_op = [&](const std::shared_ptr<Op>& other) { return other.get() == &op; };
  const size_t erased = std::erase_if(open_, is_op) + std::erase_if(inbox_, is_op);
  if (erased == 0) return;
  open_count_.fetch_sub(1);
  engine_->withdraw(op);
}

void OpQueue::withdraw_all() {
  std::scoped_lock lock(work_mutex_, inbox_mutex_);
  open_.insert(open_.end(), inbox_.begin(), inbox_.end());
  inbox_.clear();
  for (const auto& op : open_) engine_->withdraw(*op);
  open_.clear();
  open_count_.store(0);
}

std::vector<int> OpQueue::awaited(uint64_t ring_index) {
  std::lock_guard lock(work_mutex_);
  for (const auto& op : open_)
    if (op->ring_index == ring_index) return engine_->awaited(*op);
  return {};
}

void OpQueue::notify() {
  if (waiting_.load() > 0) {
    caller_event_.signal();
  } else if (background_) {
    thread_event_.signal();
  }
}

void OpQueue::loop() {
  set_denormals_flushed();
  int round = 0;
  while (!stopping_.load()) {
    const int32_t seen = thread_event_.value();
    if (stopping_.load()) return;
    if (open_count_.load() == 0 || waiting_.load() > 0 || failure_->failed()) {
      round = 0;
      thread_event_.wait(seen, kSleep);
      continue;
    }
    bool moved;
    {
      std::lock_guard lock(work_mutex_);
      moved = advance_all();
    }
    // Someone who began to wait meanwhile found the lock taken, and may be asleep.
    if (waiting_.load() > 0) caller_event_.signal();
    if (moved) {
      round = 0;
    } else {
      back_off(round++, thread_event_, seen);
    }
  }
}

}  // namespace weft
