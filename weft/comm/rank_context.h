#pragma once
// What one rank owns while a job runs: made by run_ranks, pointed to by its communicators and handles.

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "weft/comm/comm_stats.h"
#include "weft/comm/communicator.h"
#include "weft/comm/job_failure.h"
#include "weft/comm/op_queue.h"
#include "weft/comm/op_ring.h"
#include "weft/comm/operation.h"

namespace weft {

struct RankContext {
  int rank = 0, size = 1;  // in the world
  JobFailure* failure = nullptr;
  OpRing* host_ring = nullptr;  // the first of this host
  bool speaks = false;          // this process tells the terminal why the job failed

  // Members (world ranks) of the living groups, for the watchdog.
  std::mutex groups_mutex;
  std::map<uint64_t, std::vector<int>> groups;

  std::unique_ptr<OpRing> ring;
  std::unique_ptr<CommEngine> engine;
  CommStats stats;
  std::unique_ptr<OpQueue> queue;  // goes before these: what is open in it refers to all above
  // For device memory, with the first communicator of that kind; the set-up of its groups goes through the queue above.
  DeviceOptions device_options;
  std::unique_ptr<CommEngine> device_engine;
  std::unique_ptr<OpQueue> device_queue;

  void drain() {
    if (device_queue) device_queue->drain();
    queue->drain();
  }
  void stop() {
    if (device_queue) device_queue->stop();
    queue->stop();
  }
};

// A group of the engine for host memory, entered in the ring and the table above, out of which it goes with its last user.
std::shared_ptr<Group> make_group(RankContext* context, const std::vector<int>& ranks, const std::string& axis);

}  // namespace weft
