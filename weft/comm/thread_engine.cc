#include "weft/comm/thread_engine.h"

#include <sched.h>

#include <map>

#include "weft/base/error.h"
#include "weft/comm/copy_bytes.h"
#include "weft/comm/group_key.h"
#include "weft/comm/job_failure.h"
#include "weft/comm/op_queue.h"

namespace weft {
namespace {

using Channel = ThreadWorld::Channel;
using Message = ThreadWorld::Message;

struct ThreadGroup final : Group {
  std::shared_ptr<ThreadWorld::Channels> channels;
};

struct ThreadState final : EngineState {
  std::atomic<int> unread{0};  // messages of this step that peers have not read
  std::vector<char> got;       // one a member
  bool joined = false;
};

uint64_t message_key(const Op& op) {
  const uint64_t point_to_point = op.peer >= 0 ? uint64_t{1} << 63 : 0;
  return point_to_point | op.sequence << 2 | op.step;
}

uint32_t message_signature(OpKind kind, DType dtype, ReduceOp reduce) {
  if (kind == OpKind::kRecv) kind = OpKind::kSend;
  return static_cast<uint32_t>(kind) | static_cast<uint32_t>(dtype) << 8 | static_cast<uint32_t>(reduce) << 16;
}

std::string signature_text(uint32_t signature, int64_t bytes) {
  return fmt::format("{} of {}, {}, with {} bytes between them", op_kind_name(static_cast<OpKind>(signature & 0xff)),
                     dtype_name(static_cast<DType>(signature >> 8 & 0xff)), to_string(static_cast<ReduceOp>(signature >> 16)), bytes);
}

class ThreadEngine final : public CommEngine {
 public:
  explicit ThreadEngine(ThreadWorld* world) : world_(world) {}

  std::shared_ptr<Group> make_group(const std::vector<int>& ranks, const std::string& axis, int world_rank) override {
    auto group = std::make_shared<ThreadGroup>();
    const std::string key = next_group_key(&made_, ranks, axis);
    fill_group(group.get(), key, ranks, axis, world_rank);
    group->channels = world_->channels(key, group->size());
    return group;
  }

  void post(Op& op) override {
    op.state = std::make_unique<ThreadState>();
    publish(op);
  }

  bool advance(Op& op, bool* moved) override {
    for (;;) {
      const bool complete = op.steps[op.step].joins ? join(op, moved) : store(op, moved);
      if (!complete || state(op).unread.load(std::memory_order_acquire) > 0) return false;
      if (op.step + 1 == op.steps.size()) return true;
      ++op.step;
      publish(op);
      *moved = true;
    }
  }

  void withdraw(Op& op) override {
    const Group& group = *op.group;
    for (int peer = 0; peer < group.size(); ++peer) {
      Channel& to = channel(op, group.me, peer);
      std::lock_guard lock(to.mutex);
      const size_t erased = std::erase_if(to.messages, [&](const Message& m) { return m.unread == &state(op).unread; });
      state(op).unread.fetch_sub(static_cast<int>(erased));
    }
    while (state(op).unread.load(std::memory_order_acquire) > 0) ::sched_yield();  // a peer is in the middle of a copy
  }

  bool shares_memory() const override { return true; }
  bool must_poll() const override { return false; }

 private:
  static ThreadState& state(Op& op) { return static_cast<ThreadState&>(*op.state); }
  static Channel& channel(Op& op, int from, int to) { return static_cast<ThreadGroup&>(*op.group).channels->at(from, to); }
  OpQueue* queue_of(const Op& op, int member) const { return world_->queue(op.group->ranks[static_cast<size_t>(member)]); }

  // Says where the pieces of this step lie.
  void publish(Op& op) {
    const Group& group = *op.group;
    const Step& step = op.steps[op.step];
    ThreadState& mine = state(op);
    mine.got.assign(step.pieces.size(), 0);
    mine.joined = false;
    int messages = 0;
    for (int peer = 0; peer < group.size(); ++peer) messages += peer != group.me && step.pieces[static_cast<size_t>(peer)].send_bytes >= 0;
    mine.unread.store(messages);
    const uint64_t key = message_key(op);
    const uint32_t signature = message_signature(op.kind, op.dtype, op.reduce);
    for (int i = 1; i < group.size(); ++i) {
      const int peer = (group.me + i) % group.size();
      const Piece& piece = step.pieces[static_cast<size_t>(peer)];
      if (piece.send_bytes < 0) continue;
      {
        Channel& to = channel(op, group.me, peer);
        std::lock_guard lock(to.mutex);
        to.messages.push_back({key, signature, piece.send_bytes, piece.send, &mine.unread});
      }
      queue_of(op, peer)->notify();
    }
  }

  // The peer's message of this step, taken out of its channel or (`peek`) left there; false: not yet published.
  bool find(Op& op, int peer, bool peek, Message* out) {
    Channel& from = channel(op, peer, op.group->me);
    const uint64_t key = message_key(op);
    std::lock_guard lock(from.mutex);
    for (auto message = from.messages.begin(); message != from.messages.end(); ++message) {
      if (message->key != key) continue;
      const uint32_t signature = message_signature(op.kind, op.dtype, op.reduce);
      const int64_t bytes = op.steps[op.step].pieces[static_cast<size_t>(peer)].recv_bytes;
      if (message->signature != signature || message->bytes != bytes)
        throw PeerLostError(fmt::format(
            "ranks disagree at #{} of '{}': rank {} calls {}; rank {} calls {}", op.sequence, op.group->axis,
            op.group->ranks[static_cast<size_t>(op.group->me)], signature_text(signature, bytes),
            op.group->ranks[static_cast<size_t>(peer)], signature_text(message->signature, message->bytes)));
      *out = *message;
      if (!peek) from.messages.erase(message);
      return true;
    }
    return false;
  }

  // After this the sender may free what the message points to, and its operation.
  void read(const Op& op, int peer, const Message& message) {
    OpQueue* queue = queue_of(op, peer);
    if (message.unread->fetch_sub(1, std::memory_order_acq_rel) == 1) queue->notify();
  }

  // Copies pieces as they come, the own one first. True when all are here.
  bool store(Op& op, bool* moved) {
    const Group& group = *op.group;
    bool complete = true;
    for (int i = 0; i < group.size(); ++i) {
      const int peer = (group.me + i) % group.size();  // each rank starts elsewhere, so that not all read from one
      const Piece& piece = op.steps[op.step].pieces[static_cast<size_t>(peer)];
      char& got = state(op).got[static_cast<size_t>(peer)];
      if (got || piece.recv_bytes < 0) continue;
      Message message{};
      const auto take = [&](const std::byte* data) {
        if (op.steps[op.step].boxes)
          copy_boxes(*reinterpret_cast<const std::vector<MemoryBox>*>(piece.recv),
                     *reinterpret_cast<const std::vector<MemoryBox>*>(data), stores_for(op.bytes));
        else
          copy_bytes(piece.recv, data, piece.recv_bytes);
      };
      if (peer == group.me) {
        take(piece.send);
      } else if (find(op, peer, false, &message)) {
        take(message.data);
        read(op, peer, message);
      } else {
        complete = false;
        continue;
      }
      got = 1;
      *moved = true;
    }
    return complete;
  }

  // Joins all pieces once the last one is here. None is taken before, so that a peer can take its own back.
  bool join(Op& op, bool* moved) {
    const Group& group = *op.group;
    if (state(op).joined) return true;
    std::vector<Message> messages(static_cast<size_t>(group.size()));
    std::vector<const std::byte*> parts(static_cast<size_t>(group.size()));
    for (const bool peek : {true, false}) {
      for (int peer = 0; peer < group.size(); ++peer) {
        Message& message = messages[static_cast<size_t>(peer)];
        if (peer == group.me) {
          message.data = op.steps[op.step].pieces[static_cast<size_t>(peer)].send;
        } else if (!find(op, peer, peek, &message)) {
          if (peek) return false;
          for (int taken = 0; taken < peer; ++taken)
            if (taken != group.me) read(op, taken, messages[static_cast<size_t>(taken)]);
          throw PeerLostError(fmt::format("rank {} took back its part of {}", group.ranks[static_cast<size_t>(peer)], op_text(op)));
        }
        parts[static_cast<size_t>(peer)] = message.data;
      }
    }
    reduce_parts(parts, op.out, op.out_count, op.dtype, op.reduce);
    for (int peer = 0; peer < group.size(); ++peer)
      if (peer != group.me) read(op, peer, messages[static_cast<size_t>(peer)]);
    state(op).joined = true;
    return *moved = true;
  }

  ThreadWorld* world_;
  std::map<std::string, int> made_;
};

}  // namespace

std::shared_ptr<ThreadWorld::Channels> ThreadWorld::channels(const std::string& key, int size) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Channels>& entry = groups_[key];
  if (!entry) entry = std::make_shared<Channels>(size);
  std::shared_ptr<Channels> out = entry;
  if (--out->unclaimed == 0) groups_.erase(key);
  return out;
}

std::unique_ptr<CommEngine> make_thread_engine(ThreadWorld* world) { return std::make_unique<ThreadEngine>(world); }

}  // namespace weft
