#pragma once
// Ranks that are threads of one process. A rank publishes where its pieces lie; the peer copies them from there into its own buffer,
// or joins them in place: one copy, no staging. An operation is over when the rank has all its pieces and all peers have read theirs.
// That peers call the same operation with the same sizes is checked at every message.

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "weft/comm/operation.h"

namespace weft {

class OpQueue;

// What the thread ranks of a job share; outlives their engines.
class ThreadWorld {
 public:
  explicit ThreadWorld(int size) : queues_(static_cast<size_t>(size), nullptr) {}
  int size() const { return static_cast<int>(queues_.size()); }
  // Set before any rank communicates.
  void set_queue(int rank, OpQueue* queue) { queues_[static_cast<size_t>(rank)] = queue; }
  OpQueue* queue(int rank) const { return queues_[static_cast<size_t>(rank)]; }

  struct Message {
    uint64_t key;        // which message between two members this is
    uint32_t signature;  // operation, dtype, way of joining
    int64_t bytes;
    const std::byte* data;
    std::atomic<int>* unread;  // of the sender's operation
  };
  // From one member to another; holds what was published and not yet read.
  struct Channel {
    std::mutex mutex;
    std::vector<Message> messages;
  };
  struct Channels {
    explicit Channels(int n) : size(n), all(static_cast<size_t>(n) * static_cast<size_t>(n)), unclaimed(n) {}
    Channel& at(int from, int to) { return all[static_cast<size_t>(from) * static_cast<size_t>(size) + static_cast<size_t>(to)]; }
    int size;
    std::vector<Channel> all;
    int unclaimed;  // members that have not asked for it
  };
  // The first member that asks makes it.
  std::shared_ptr<Channels> channels(const std::string& key, int size);

 private:
  std::vector<OpQueue*> queues_;
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Channels>> groups_;
};

std::unique_ptr<CommEngine> make_thread_engine(ThreadWorld* world);

}  // namespace weft
