#pragma once
// What one rank owns while a job runs: made by run_ranks, pointed to by its communicators and handles.

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "weft/comm/comm_stats.h"
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
  std::unique_ptr<OpQueue> queue;  // the first to go: what is open in it refers to all above
};

// A group of the engine, entered in the ring and the table above, out of which it goes with its last user.
std::shared_ptr<Group> make_group(RankContext* context, const std::vector<int>& ranks, const std::string& axis);

}  // namespace weft
