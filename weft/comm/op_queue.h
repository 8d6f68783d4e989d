#pragma once
// The open operations of one rank and who works on them. With `background` a communication thread does, so that they move while the
// rank computes; a rank inside wait() helps itself, which spares a switch of threads. Without, all work is done inside enqueue and
// wait. The operations, their order and their bits are the same.
//
// Who polls: spins for some 50 us where every rank has a core (else for 3), yields for about 0.1 ms, then sleeps until a peer has
// moved (threads) or in naps of 20 to 200 us (an engine that must poll).

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "weft/comm/event.h"
#include "weft/comm/job_failure.h"
#include "weft/comm/op_ring.h"
#include "weft/comm/operation.h"

namespace weft {

class OpQueue {
 public:
  // All must outlive the queue.
  OpQueue(CommEngine* engine, JobFailure* failure, OpRing* ring, bool background, bool core_per_rank);
  ~OpQueue() { stop(); }
  OpQueue(const OpQueue&) = delete;
  OpQueue& operator=(const OpQueue&) = delete;

  // By the rank's threads, one at a time. Throws PeerLostError when the job has failed.
  void enqueue(std::shared_ptr<Op> op);
  // Returns when it is done. Throws PeerLostError when the job has failed; the buffers are free then, too.
  void wait(Op& op);
  // Waits until nothing is open.
  void drain();
  // Takes an operation back whose buffers are about to go. The job cannot go on after that.
  void withdraw(Op& op);
  // How long this rank has stood in wait() and, where it moves the bytes itself, in enqueue() [s].
  double seconds_waited() const { return 1e-9 * static_cast<double>(waited_ns_.load(std::memory_order_relaxed)); }
  // World ranks from which the operation with this index in the ring still lacks something. Any thread.
  std::vector<int> awaited(uint64_t ring_index);
  // Does what can be done without waiting. Any thread.
  void poll() { try_advance(); }
  // A peer has moved. Any thread.
  void notify();
  // Ends the communication thread; what is still open stays undone. All queues of a process stop before the first of them goes.
  void stop();

 private:
  void back_off(int round, Event& event, int32_t seen);
  bool advance_all();  // under work_mutex_
  bool try_advance();
  void withdraw_all();
  void loop();

  CommEngine* engine_;
  JobFailure* failure_;
  OpRing* ring_;
  const bool background_;
  const int spins_;

  std::mutex inbox_mutex_;
  std::vector<std::shared_ptr<Op>> inbox_;
  std::mutex work_mutex_;
  std::vector<std::shared_ptr<Op>> open_;  // in program order, under work_mutex_
  std::atomic<int> open_count_{0};         // inbox_ and open_

  std::atomic<int> waiting_{0};  // threads inside wait()
  std::atomic<int64_t> waited_ns_{0};
  std::atomic<bool> stopping_{false};
  Event caller_event_, thread_event_;
  std::thread thread_;
};

}  // namespace weft
