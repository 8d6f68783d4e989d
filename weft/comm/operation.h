#pragma once
// What an engine executes: an operation is one or more steps, in each of which the rank sends a piece to some members of its group
// and gets a piece from some, and then copies or joins what it got. Engines know nothing else; which pieces make which collective
// stands in communicator.cc, once for all engines.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/comm/memory_box.h"
#include "weft/comm/reduce.h"

namespace weft {

enum class OpKind : uint8_t {
  kAllGather, kReduceScatter, kAllReduce, kAllToAll, kBroadcast, kGather, kScatter, kSend, kRecv, kBarrier, kSharedGather, kExchange
};
std::string_view op_kind_name(OpKind kind);

class CommEngine;
class OpQueue;

// Members of a communicator as one rank sees them. Engines derive their own. Numbers are positions in `ranks` unless they say world.
struct Group {
  virtual ~Group() = default;
  std::string axis;
  std::vector<int> ranks;          // world ranks of the members
  int me = 0;
  uint64_t id = 0;                 // equal on all members, unequal for different groups
  int ring_slot = -1;              // of OpRing's table of groups
  uint64_t next_sequence = 0;      // of collectives
  std::vector<uint64_t> next_sent, next_received;  // of send and recv, per peer
  CommEngine* engine = nullptr;    // which executes its operations,
  OpQueue* queue = nullptr;        // and where they wait for that
  std::shared_ptr<Group> host;     // of a group for device memory: the same ranks' group for host memory, used for its set-up only
  int size() const { return static_cast<int>(ranks.size()); }
};

// Between this rank and one member. Bytes of -1: no message; 0: a message without content.
struct Piece {
  const std::byte* send = nullptr;
  int64_t send_bytes = -1;
  std::byte* recv = nullptr;
  int64_t recv_bytes = -1;
};

// One message of a piece that travels as several, to the peer or from it.
struct Part {
  int peer = 0;
  bool sent = false;
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

// pieces[me].send goes to pieces[me].recv unless they are the same place. With `joins` the pieces that arrive, with pieces[me].send
// among them in rank order, are joined into Op::out instead of stored.
struct Step {
  std::vector<Piece> pieces;  // one a member
  bool joins = false;
  bool boxes = false;  // pieces point to std::vector<MemoryBox>, of as many bytes in all; engines that share memory only
  // Messages in place of the pieces, which tell their sums only; in the same order at both ends. Engines that share no memory.
  std::vector<Part> parts;
};

struct EngineState {
  virtual ~EngineState() = default;
};

struct Op {
  OpKind kind = OpKind::kBarrier;
  std::shared_ptr<Group> group;
  uint64_t sequence = 0;  // of collectives in the group, or of messages to (from) `peer`
  int peer = -1;          // of send and recv
  DType dtype = DType::kU8;
  ReduceOp reduce = ReduceOp::kSum;
  std::byte* out = nullptr;  // of the joining step
  int64_t out_count = 0;     // elements
  int64_t bytes = 0;         // of the rank's largest buffer: what messages show
  std::string purpose;       // of its bytes
  int64_t launched_ns = 0;   // where it is traced
  std::vector<Step> steps;
  std::vector<std::byte> owned;  // a copy of a small input, so that out may be in; what boxes are packed into
  std::vector<std::vector<MemoryBox>> send_boxes, recv_boxes;  // of an exchange, by member
  std::function<void()> after;  // when it is over, on the thread that waits for it

  uint64_t ring_index = 0;
  size_t step = 0;
  std::unique_ptr<EngineState> state;
  std::atomic<bool> done{false};
};

// "all_gather #5 of 'fsdp' (4096 bytes)"
std::string op_text(const Op& op);

// Executes the operations of one rank. post is called by enqueuing threads in program order, one at a time; advance, withdraw under
// one lock (the owner's OpQueue).
class CommEngine {
 public:
  virtual ~CommEngine() = default;
  // Collective over `ranks` (world ranks, distinct, me among them). Called when no operation of this rank is open.
  virtual std::shared_ptr<Group> make_group(const std::vector<int>& ranks, const std::string& axis, int world_rank) = 0;
  virtual void post(Op& op) = 0;
  // Does what can be done without waiting. `moved`: set when something changed. True when the operation is over and its buffers
  // are free. Throws PeerLostError where a peer does something else.
  virtual bool advance(Op& op, bool* moved) = 0;
  // After it returns nobody reads or writes the buffers of an unfinished operation. The job cannot go on.
  virtual void withdraw(Op& op) = 0;
  // World ranks from which an unfinished operation still lacks something, as far as the engine knows.
  virtual std::vector<int> awaited(const Op&) const { return {}; }
  virtual bool shares_memory() const = 0;  // members can read each other's pointers
  virtual bool must_poll() const = 0;      // nobody calls OpQueue::notify when a peer has moved
  virtual bool device_memory() const { return false; }  // pointers are a GPU's: no code of ours on the CPU may follow them
  // The rank has returned, with no operation open; its peers are about to. The engine takes leave of theirs.
  virtual void leave() {}
};

}  // namespace weft
