#pragma once
// The last operations of one rank in a small memory-mapped file (about 8 KB), written by that rank, read by its watchdog and by those
// of its peers on the same host, also after its death. Every field is atomic and stands alone: a reader may see a record half
// renewed, so whoever decides by one looks twice. Times are nanoseconds of the steady clock, which processes of a host share.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "weft/comm/operation.h"

namespace weft {

enum class RankStatus : int32_t { kStarting = 0, kRunning, kReturned, kFailed };
enum class OpState : uint8_t { kOpen = 0, kDone };

struct OpRecord {
  std::atomic<uint64_t> sequence;
  std::atomic<int64_t> bytes;
  std::atomic<int64_t> enqueued_ns, done_ns;
  std::atomic<int32_t> group_slot;
  std::atomic<int16_t> peer;  // of send and recv, world rank; else -1
  std::atomic<OpKind> kind;
  std::atomic<OpState> state;
};

struct GroupRecord {
  std::atomic<uint64_t> id;        // 0: free
  std::atomic<uint64_t> enqueued;  // collectives so far
  char axis[16];                   // written before id
};

struct RankRecord {
  static constexpr int kOps = 64, kGroups = 64;
  std::atomic<uint64_t> host;  // a hash of its name
  std::atomic<uint64_t> cpu_mask;  // hash of it: ranks of a host with one mask share its cores
  std::atomic<int64_t> pid;
  std::atomic<int64_t> heartbeat_ns;
  std::atomic<RankStatus> status;
  std::atomic<int64_t> waiting_since_ns;  // 0: the rank computes
  std::atomic<uint64_t> waiting_for;      // index of the operation, while it waits
  std::atomic<uint64_t> next_op;          // operation i is ops[i % kOps]
  GroupRecord groups[kGroups];
  OpRecord ops[kOps];
  std::atomic<int32_t> spoken_for;  // in the first ring of a host: one of its processes tells the terminal why the job failed
  char error[240];  // of a failed job: the reason as this rank knows it; written before status
};

int64_t steady_ns();

// One mapped file. Throws SystemError where the system refuses.
class OpRing {
 public:
  static std::unique_ptr<OpRing> create(const std::string& path);
  // Null where there is no such file or a rank of another host wrote it: its times and process numbers mean nothing here.
  static std::unique_ptr<OpRing> open(const std::string& path);
  ~OpRing();
  OpRing(const OpRing&) = delete;
  OpRing& operator=(const OpRing&) = delete;

  RankRecord& record() { return *record_; }
  const RankRecord& record() const { return *record_; }

  // The owner's side. One thread at a time, except finished, started_waiting, stopped_waiting.
  int add_group(uint64_t id, std::string_view axis);  // -1 when all slots are taken: the watchdog then knows it by time only
  void remove_group(int slot);
  void enqueued(Op* op);
  void finished(const Op& op);
  void started_waiting(const Op& op);
  void stopped_waiting();
  void set_status(RankStatus status, std::string_view error = {});

  // "  #5 all_gather of 'fsdp', 4096 bytes, open for 2.1 s", newest first, at most `count` lines.
  std::string last_operations(int count) const;
  // The newest collective of a group, or null.
  const OpRecord* find(uint64_t group_id, uint64_t sequence) const;

 private:
  OpRing() = default;
  RankRecord* record_ = nullptr;
};

}  // namespace weft
