#pragma once
// Looks at the rings of all ranks it can see (those of this process, and of other processes of the host) ten times a second and says
// who is to blame when a job cannot go on. It makes no call of an engine and costs nothing on the way of a message.
//
// Found: a process that is gone (at once) or silent for heartbeat_s; a rank that returned while another waits for it, or threw; after
// stall_s of waiting, peers at the same place of the same group with another operation or size, and ranks that wait for each
// other in different groups; after timeout_s, ranks that have not come. A rank that computes is alive as long as its process is.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "weft/comm/event.h"
#include "weft/comm/rank_context.h"

namespace weft {

struct WatchdogOptions {
  double heartbeat_s, timeout_s, stall_s;
};

// Of all processes of a host the first that asks tells the terminal why the job failed. True when it is this one.
bool claim_to_speak(RankContext* rank);

class Watchdog {
 public:
  // `rings`: one a world rank, null where out of sight. `local`: the ranks of this process. All outlive the watchdog.
  // A verdict fails the job. Once the job has failed, for whatever reason, the process has heartbeat_s to destroy the watchdog; then
  // the watchdog ends it by _exit with the failure's exit code.
  Watchdog(WatchdogOptions options, std::vector<OpRing*> rings, std::vector<RankContext*> local, JobFailure* failure);
  ~Watchdog();

  // Writes the failure's reason and the last operations of all ranks, once: to the log of each rank here and, from one process of
  // the host, to standard error.
  void announce();

 private:
  struct Wait;
  std::string verdict() const;
  std::string lost_rank() const;
  std::string judge(const Wait& wait) const;
  std::string disagreement(const Wait& wait) const;
  std::string circle(const Wait& start) const;
  bool find_wait(int rank, Wait* out) const;
  std::vector<int> members(uint64_t group) const;
  std::vector<int> missing(const Wait& wait) const;
  std::vector<int> missing_out_of_sight(const Wait& wait) const;
  bool arrived(int rank, uint64_t group, uint64_t sequence) const;
  std::string report() const;
  void loop();

  const WatchdogOptions options_;
  const std::vector<OpRing*> rings_;
  const std::vector<RankContext*> local_;
  JobFailure* failure_;
  std::atomic<bool> stop_{false}, announced_{false};
  Event event_;
  std::thread thread_;
};

}  // namespace weft
