#include "weft/comm/communicator.h"

#include <sys/mman.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "weft/base/error.h"
#include "weft/comm/rank_context.h"
#include "weft/comm/traffic.h"

namespace weft {
namespace {

// Shared buffers up to this size have two halves that gathers take in turn, so that one meeting is enough: at 64 KB on 4 ranks a
// gather takes half the time. Larger ones save the memory.
constexpr int64_t kTwoHalves = int64_t{1} << 20;

// Up to this an all-reduce sends each input whole and every rank joins all of them: one exchange instead of two. For 8 ranks that
// is 56 KB in, still less time than a second round of waiting for each other.
constexpr int64_t kSmallReduce = 8 << 10;

// Boxes of an exchange from which a message of their own costs less than packing: 64 KB are copied in about 5 us. Both ends know
// the sizes; whether a box lies in one run is each end's own affair.
constexpr int64_t kOwnMessage = 64 << 10;
bool travels_alone(const MemoryBox& box) { return box.bytes() >= kOwnMessage; }

const std::byte* as_bytes(const void* p) { return static_cast<const std::byte*>(p); }
std::byte* as_bytes(void* p) { return static_cast<std::byte*>(p); }

int64_t sum(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

Step new_step(const Group& group) {
  Step step;
  step.pieces.resize(static_cast<size_t>(group.size()));
  return step;
}

// Everyone's part to everyone.
Step gather_step(const Group& group, const std::byte* mine, std::byte* all, std::span<const int64_t> counts, int64_t width) {
  Step step = new_step(group);
  int64_t offset = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    const int64_t bytes = counts[r] * width;
    step.pieces[r] = {mine, counts[static_cast<size_t>(group.me)] * width, all + offset, bytes};
    offset += bytes;
  }
  return step;
}

// Everyone's part for me, joined.
Step join_step(const Group& group, const std::byte* all, std::span<const int64_t> counts, int64_t width) {
  Step step = new_step(group);
  step.joins = true;
  int64_t offset = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    const int64_t bytes = counts[r] * width;
    step.pieces[r] = {all + offset, bytes, nullptr, counts[static_cast<size_t>(group.me)] * width};
    offset += bytes;
  }
  return step;
}

// A message without content to and from every peer.
Step meet_step(const Group& group) {
  Step step = new_step(group);
  for (int r = 0; r < group.size(); ++r)
    if (r != group.me) step.pieces[static_cast<size_t>(r)] = {nullptr, 0, nullptr, 0};
  return step;
}

// Shares of `count` elements for the two halves of an all-reduce: equal, multiples of 16 elements but for the last.
std::vector<int64_t> even_shares(int64_t count, int n) {
  const int64_t share = ((count + n - 1) / n + 15) / 16 * 16;
  std::vector<int64_t> out;
  for (int r = 0; r < n; ++r) out.push_back(std::clamp<int64_t>(count - r * share, 0, share));
  return out;
}

}  // namespace

int64_t all_reduce_bytes(int64_t count, int64_t width, int ranks, int rank) {
  if (ranks == 1) return 0;
  if (count * width <= kSmallReduce) return count * width * (ranks - 1);
  const int64_t mine = even_shares(count, ranks)[static_cast<size_t>(rank)];
  return (count - mine + mine * (ranks - 1)) * width;
}

// ---- SharedBuffer

SharedBuffer::Memory::Memory(int64_t bytes)
    : data_(static_cast<std::byte*>(::operator new (static_cast<size_t>(bytes), std::align_val_t{4096}))) {
  // Fewer page faults and TLB misses for large buffers; where the system has no huge pages nothing changes.
  if (bytes >= (4 << 20)) ::madvise(data_, static_cast<size_t>(bytes), MADV_HUGEPAGE);
}
SharedBuffer::Memory::~Memory() { ::operator delete (data_, std::align_val_t{4096}); }

// ---- Communicator

Communicator::Communicator(RankContext* context, std::shared_ptr<Group> group) : context_(context), group_(std::move(group)) {}

int Communicator::rank() const { return group_->me; }
int Communicator::size() const { return group_->size(); }
const std::string& Communicator::axis() const { return group_->axis; }
int Communicator::world_rank(int member) const { return group_->ranks[static_cast<size_t>(check_member(member, "member"))]; }
CommStats& Communicator::stats() const { return context_->stats; }
double Communicator::seconds_waited() const {
  return context_->queue->seconds_waited() + (context_->device_queue ? context_->device_queue->seconds_waited() : 0);
}

int Communicator::check_member(int member, const char* name) const {
  if (member < 0 || member >= size())
    throw ValueError(fmt::format("'{}' has ranks 0 to {}, not {} {}", axis(), size() - 1, name, member));
  return member;
}

void Communicator::check_counts(std::span<const int64_t> counts, const char* name) const {
  if (std::ssize(counts) != size())
    throw ValueError(fmt::format("{}: {} counts for the {} ranks of '{}'", name, counts.size(), size(), axis()));
  for (const int64_t count : counts)
    if (count < 0) throw ValueError(fmt::format("{}: negative count {}", name, count));
}

std::shared_ptr<Op> Communicator::new_op(OpKind kind, DType dtype) const {
  auto op = std::make_shared<Op>();
  op->kind = kind;
  op->group = group_;
  op->dtype = dtype;
  return op;
}

Work Communicator::enqueue(std::shared_ptr<Op> op, std::string_view purpose) const {
  int64_t sent = 0, received = 0;
  for (const Step& step : op->steps) {
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      sent += std::max<int64_t>(step.pieces[static_cast<size_t>(r)].send_bytes, 0);
      received += std::max<int64_t>(step.pieces[static_cast<size_t>(r)].recv_bytes, 0);
    }
  }
  if (op->kind == OpKind::kSharedGather && group_->engine->shares_memory() && size() > 1) {
    sent = op->steps[op->steps.size() - 2].pieces[static_cast<size_t>(rank())].send_bytes;
    received = op->bytes - sent;
  }
  if (op->peer < 0) op->sequence = group_->next_sequence++;
  op->purpose = purpose;
  group_->queue->enqueue(op);
  context_->stats.add(op->kind, axis(), purpose, sent, received);
  return Work(std::move(op));
}

Work Communicator::all_gather(const void* mine, void* all, std::span<const int64_t> counts, DType dtype,
                              std::string_view purpose) const {
  check_counts(counts, "all_gather");
  auto op = new_op(OpKind::kAllGather, dtype);
  op->bytes = sum(counts) * dtype_bytes(dtype);
  op->steps.push_back(gather_step(*group_, as_bytes(mine), as_bytes(all), counts, dtype_bytes(dtype)));
  return enqueue(std::move(op), purpose);
}

Work Communicator::reduce_scatter(const void* all, void* mine, std::span<const int64_t> counts, DType dtype, ReduceOp reduce,
                                  std::string_view purpose) const {
  check_counts(counts, "reduce_scatter");
  check_reducible(dtype, reduce);
  auto op = new_op(OpKind::kReduceScatter, dtype);
  op->reduce = reduce;
  op->bytes = sum(counts) * dtype_bytes(dtype);
  op->out = as_bytes(mine);
  op->out_count = counts[static_cast<size_t>(rank())];
  op->steps.push_back(join_step(*group_, as_bytes(all), counts, dtype_bytes(dtype)));
  return enqueue(std::move(op), purpose);
}

Work Communicator::all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp reduce,
                              std::string_view purpose) const {
  if (count < 0) throw ValueError(fmt::format("all_reduce: negative count {}", count));
  check_reducible(dtype, reduce);
  const int64_t width = dtype_bytes(dtype);
  auto op = new_op(OpKind::kAllReduce, dtype);
  op->reduce = reduce;
  op->bytes = count * width;
  if (size() == 1 || op->bytes <= kSmallReduce) {
    const std::byte* source = as_bytes(in);
    if (size() > 1 &&
        !group_->engine->device_memory()) {  // a device joins when its inputs have gone, so that none is overwritten
      op->owned.assign(source, source + op->bytes);
      source = op->owned.data();
    }
    Step step = new_step(*group_);
    step.joins = true;
    for (Piece& piece : step.pieces) piece = {source, op->bytes, nullptr, op->bytes};
    op->out = as_bytes(out);
    op->out_count = count;
    op->steps.push_back(std::move(step));
  } else {
    // In place is safe: peer p's share of this rank's input is overwritten in the second step only, when p has joined it.
    const std::vector<int64_t> shares = even_shares(count, size());
    const int64_t offset = sum(std::span(shares).first(static_cast<size_t>(rank()))) * width;
    op->out = as_bytes(out) + offset;
    op->out_count = shares[static_cast<size_t>(rank())];
    op->steps.push_back(join_step(*group_, as_bytes(in), shares, width));
    op->steps.push_back(gather_step(*group_, op->out, as_bytes(out), shares, width));
  }
  return enqueue(std::move(op), purpose);
}

Work Communicator::all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                              std::span<const int64_t> recv_counts, DType dtype, std::string_view purpose) const {
  check_counts(send_counts, "all_to_all, send");
  check_counts(recv_counts, "all_to_all, receive");
  const size_t me = static_cast<size_t>(rank());
  if (send_counts[me] != recv_counts[me])
    throw ValueError(
        fmt::format("all_to_all: rank {} sends {} elements to itself and receives {}", rank(), send_counts[me], recv_counts[me]));
  const int64_t width = dtype_bytes(dtype);
  auto op = new_op(OpKind::kAllToAll, dtype);
  op->bytes = std::max(sum(send_counts), sum(recv_counts)) * width;
  Step step = new_step(*group_);
  int64_t from = 0, to = 0;
  for (size_t r = 0; r < step.pieces.size(); ++r) {
    step.pieces[r] = {as_bytes(send) + from, send_counts[r] * width, as_bytes(recv) + to, recv_counts[r] * width};
    from += step.pieces[r].send_bytes;
    to += step.pieces[r].recv_bytes;
  }
  op->steps.push_back(std::move(step));
  return enqueue(std::move(op), purpose);
}

bool Communicator::shares_memory() const { return group_->engine->shares_memory(); }

int64_t Communicator::packed_bytes(std::span<const MemoryBox> boxes) {
  int64_t bytes = 0;
  for (const MemoryBox& b : boxes)
    if (!travels_alone(b) || !contiguous(b)) bytes += b.bytes();
  return bytes;
}

Work Communicator::exchange(std::vector<std::vector<MemoryBox>> send, std::vector<std::vector<MemoryBox>> recv,
                            std::string_view purpose, std::byte* staging) const {
  if (std::ssize(send) != size() || std::ssize(recv) != size())
    throw ValueError(
        fmt::format("exchange: boxes for {} and from {} ranks of the {} of '{}'", send.size(), recv.size(), size(), axis()));
  if (group_->engine->device_memory()) throw ValueError("exchange: boxes of host memory only");
  const auto bytes_of = [](const std::vector<MemoryBox>& boxes) {
    int64_t n = 0;
    for (const MemoryBox& b : boxes) n += b.bytes();
    return n;
  };
  auto op = new_op(OpKind::kExchange, DType::kU8);
  op->send_boxes = std::move(send);
  op->recv_boxes = std::move(recv);
  Step step = new_step(*group_);
  int64_t out = 0, in = 0;
  for (size_t r = 0; r < step.pieces.size(); ++r) {
    Piece& piece = step.pieces[r];
    piece.send_bytes = bytes_of(op->send_boxes[r]);
    piece.recv_bytes = bytes_of(op->recv_boxes[r]);
    out += piece.send_bytes, in += piece.recv_bytes;
  }
  const size_t me = static_cast<size_t>(rank());
  if (step.pieces[me].send_bytes != step.pieces[me].recv_bytes)
    throw ValueError(fmt::format("exchange: rank {} sends {} bytes to itself and receives {}", rank(), step.pieces[me].send_bytes,
                                 step.pieces[me].recv_bytes));
  op->bytes = std::max(out, in);
  if (group_->engine->shares_memory()) {
    step.boxes = true;
    for (size_t r = 0; r < step.pieces.size(); ++r) {
      step.pieces[r].send = reinterpret_cast<const std::byte*>(&op->send_boxes[r]);
      step.pieces[r].recv = reinterpret_cast<std::byte*>(&op->recv_boxes[r]);
    }
  } else {
    // What stays here is copied at once. Of the rest, short boxes to a rank travel together and each long one alone.
    copy_boxes(op->recv_boxes[me], op->send_boxes[me], stores_for(op->bytes));
    step.pieces[me] = {};
    if (!staging) {
      int64_t packed = 0;
      for (size_t r = 0; r < step.pieces.size(); ++r)
        if (r != me) packed += packed_bytes(op->send_boxes[r]) + packed_bytes(op->recv_boxes[r]);
      op->owned.resize(static_cast<size_t>(packed));
      staging = op->owned.data();
    }
    std::vector<std::pair<const MemoryBox*, std::byte*>> arrivals;  // boxes to unpack, and where they come to lie
    const auto add_parts = [&](size_t r, bool sends) {
      const auto staged = [&](const MemoryBox& b) {
        if (sends)
          copy_box(contiguous_box(staging, b.bytes()), b);
        else
          arrivals.emplace_back(&b, staging);
        return std::exchange(staging, staging + b.bytes());
      };
      const auto add = [&](std::byte* data, int64_t bytes) { step.parts.push_back({static_cast<int>(r), sends, data, bytes}); };
      const std::vector<MemoryBox>& boxes = (sends ? op->send_boxes : op->recv_boxes)[r];
      std::byte* const together = staging;
      for (const MemoryBox& b : boxes)
        if (!travels_alone(b)) staged(b);
      add(together, staging - together);  // even where it is empty
      for (const MemoryBox& b : boxes)
        if (travels_alone(b)) add(contiguous(b) ? b.data : staged(b), b.bytes());
    };
    for (const bool sends : {false, true})
      for (int i = 1; i < size(); ++i) add_parts(static_cast<size_t>((rank() + i) % size()), sends);
    op->after = [self = op.get(), arrivals = std::move(arrivals)] {
      for (const auto& [box, from] : arrivals) copy_box(*box, contiguous_box(from, box->bytes()), stores_for(self->bytes));
      self->after = nullptr;
    };
  }
  op->steps.push_back(std::move(step));
  return enqueue(std::move(op), purpose);
}

Work Communicator::broadcast(void* data, int64_t count, DType dtype, int root, std::string_view purpose) const {
  check_member(root, "root");
  if (count < 0) throw ValueError(fmt::format("broadcast: negative count {}", count));
  auto op = new_op(OpKind::kBroadcast, dtype);
  op->bytes = count * dtype_bytes(dtype);
  Step step = new_step(*group_);
  for (int r = 0; r < size(); ++r) {
    Piece& piece = step.pieces[static_cast<size_t>(r)];
    if (rank() == root && r != root) {
      piece.send = as_bytes(data);
      piece.send_bytes = op->bytes;
    } else if (rank() != root && r == root) {
      piece.recv = as_bytes(data);
      piece.recv_bytes = op->bytes;
    }
  }
  op->steps.push_back(std::move(step));
  return enqueue(std::move(op), purpose);
}

Work Communicator::gather(const void* mine, void* all, std::span<const int64_t> counts, DType dtype, int root,
                          std::string_view purpose) const {
  check_member(root, "root");
  check_counts(counts, "gather");
  auto op = new_op(OpKind::kGather, dtype);
  op->bytes = sum(counts) * dtype_bytes(dtype);
  Step step = gather_step(*group_, as_bytes(mine), as_bytes(all), counts, dtype_bytes(dtype));
  for (int r = 0; r < size(); ++r) {
    Piece& piece = step.pieces[static_cast<size_t>(r)];
    if (rank() != root) piece.recv_bytes = -1;
    if (r != root) piece.send_bytes = -1;
  }
  op->steps.push_back(std::move(step));
  return enqueue(std::move(op), purpose);
}

Work Communicator::scatter(const void* all, void* mine, std::span<const int64_t> counts, DType dtype, int root,
                           std::string_view purpose) const {
  check_member(root, "root");
  check_counts(counts, "scatter");
  auto op = new_op(OpKind::kScatter, dtype);
  op->bytes = sum(counts) * dtype_bytes(dtype);
  Step step = join_step(*group_, as_bytes(all), counts, dtype_bytes(dtype));
  step.joins = false;
  for (int r = 0; r < size(); ++r) {
    Piece& piece = step.pieces[static_cast<size_t>(r)];
    piece.recv = as_bytes(mine);
    if (rank() != root) piece.send_bytes = -1;
    if (r != root) piece.recv_bytes = -1;
  }
  op->steps.push_back(std::move(step));
  return enqueue(std::move(op), purpose);
}

Work Communicator::send(const void* data, int64_t count, DType dtype, int to, std::string_view purpose) const {
  if (check_member(to, "rank") == rank()) throw ValueError(fmt::format("send: rank {} to itself", to));
  if (count < 0) throw ValueError(fmt::format("send: negative count {}", count));
  auto op = new_op(OpKind::kSend, dtype);
  op->peer = to;
  op->sequence = group_->next_sent[static_cast<size_t>(to)]++;
  op->bytes = count * dtype_bytes(dtype);
  Step step = new_step(*group_);
  step.pieces[static_cast<size_t>(to)] = {as_bytes(data), op->bytes, nullptr, -1};
  op->steps.push_back(std::move(step));
  return enqueue(std::move(op), purpose);
}

Work Communicator::recv(void* data, int64_t count, DType dtype, int from, std::string_view purpose) const {
  if (check_member(from, "rank") == rank()) throw ValueError(fmt::format("recv: rank {} from itself", from));
  if (count < 0) throw ValueError(fmt::format("recv: negative count {}", count));
  auto op = new_op(OpKind::kRecv, dtype);
  op->peer = from;
  op->sequence = group_->next_received[static_cast<size_t>(from)]++;
  op->bytes = count * dtype_bytes(dtype);
  Step step = new_step(*group_);
  step.pieces[static_cast<size_t>(from)] = {nullptr, -1, as_bytes(data), op->bytes};
  op->steps.push_back(std::move(step));
  return enqueue(std::move(op), purpose);
}

Work Communicator::barrier(std::string_view purpose) const {
  auto op = new_op(OpKind::kBarrier, DType::kU8);
  op->steps.push_back(meet_step(*group_));
  return enqueue(std::move(op), purpose);
}

SharedBuffer Communicator::shared_buffer(int64_t bytes) const {
  if (bytes < 0) throw ValueError(fmt::format("shared_buffer: {} bytes", bytes));
  if (group_->host)
    throw ValueError(fmt::format("shared_buffer: '{}' takes device memory, which ranks do not share; use all_gather", axis()));
  SharedBuffer out;
  out.bytes_ = bytes;
  out.group_id_ = group_->id;
  out.mine_ = std::make_shared<SharedBuffer::Mine>();
  const bool shared = group_->engine->shares_memory();
  if (shared && bytes <= kTwoHalves) out.second_half_ = (bytes + 63) / 64 * 64;
  if (!shared || rank() == 0) out.memory_ = std::make_shared<SharedBuffer::Memory>(bytes + out.second_half_);
  if (!shared) return out;
  // The others copy rank 0's handle, which stays where it is until they have.
  int64_t here[2] = {static_cast<int64_t>(reinterpret_cast<intptr_t>(&out.memory_)), bytes};
  broadcast(here, 2, DType::kI64, 0, "setup").wait();
  if (here[1] != bytes)
    throw ValueError(fmt::format("shared_buffer: rank {} asks for {} bytes and rank 0 for {}", rank(), bytes, here[1]));
  if (rank() != 0) out.memory_ = *reinterpret_cast<const std::shared_ptr<SharedBuffer::Memory>*>(static_cast<intptr_t>(here[0]));
  barrier("setup").wait();
  return out;
}

Work Communicator::all_gather_shared(const void* mine, std::span<const int64_t> counts, DType dtype, SharedBuffer& into,
                                     std::string_view purpose) const {
  check_counts(counts, "all_gather_shared");
  const int64_t width = dtype_bytes(dtype);
  auto op = new_op(OpKind::kSharedGather, dtype);
  op->bytes = sum(counts) * width;
  if (!into.memory_ || into.group_id_ != group_->id)
    throw ValueError(fmt::format("all_gather_shared: the buffer was not made by this communicator ('{}')", axis()));
  if (op->bytes > into.bytes_)
    throw ValueError(fmt::format("all_gather_shared: {} bytes into a buffer of {}", op->bytes, into.bytes_));
  if (into.mine_->held) throw ValueError("all_gather_shared: release() what was gathered into this buffer first");
  into.mine_->held = true;
  if (into.second_half_ > 0) into.mine_->offset = into.second_half_ - into.mine_->offset;
  if (group_->engine->shares_memory()) {
    const int64_t offset = sum(counts.first(static_cast<size_t>(rank()))) * width,
                  bytes = counts[static_cast<size_t>(rank())] * width;
    Step own = new_step(*group_);
    own.pieces[static_cast<size_t>(rank())] = {as_bytes(mine), bytes, into.memory_->data() + into.mine_->offset + offset, bytes};
    // All have released; of two halves this one was when all came to the gather before this.
    if (into.second_half_ == 0) op->steps.push_back(meet_step(*group_));
    op->steps.push_back(std::move(own));
    op->steps.push_back(meet_step(*group_));  // all have written
  } else {
    op->steps.push_back(gather_step(*group_, as_bytes(mine), into.memory_->data(), counts, width));
  }
  return enqueue(std::move(op), purpose);
}

}  // namespace weft
