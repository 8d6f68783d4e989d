#include "weft/comm/op_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "weft/base/cores.h"
#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft {
namespace {

RankRecord* map_file(int fd, const std::string& path) {
  void* memory = ::mmap(nullptr, sizeof(RankRecord), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int reason = errno;
  ::close(fd);
  if (memory == MAP_FAILED) throw SystemError(fmt::format("cannot map '{}': {}", path, std::strerror(reason)));
  return static_cast<RankRecord*>(memory);
}

std::string bounded(const char* text, size_t limit) { return std::string(text, ::strnlen(text, limit)); }

void copy_text(char* to, size_t limit, std::string_view text) {
  const size_t n = std::min(text.size(), limit - 1);
  std::copy_n(text.begin(), n, to);
  to[n] = '\0';
}

uint64_t host_hash() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  uint64_t hash = 1;
  for (const char* c = name; *c; ++c) hash = hash_combine(hash, static_cast<unsigned char>(*c));
  return hash;
}

}  // namespace

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::unique_ptr<OpRing> OpRing::create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) throw SystemError(fmt::format("cannot create '{}': {}", path, std::strerror(errno)));
  if (const int refused = ::posix_fallocate(fd, 0, sizeof(RankRecord)); refused != 0) {
    ::close(fd);
    throw SystemError(fmt::format("cannot write '{}': {}", path, std::strerror(refused)));
  }
  std::unique_ptr<OpRing> ring(new OpRing);
  try {
    ring->record_ = map_file(fd, path);  // zeros: valid for every field
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
  ring->record_->host.store(host_hash());
  ring->record_->cpu_mask.store(core_limits().mask_hash);
  ring->record_->pid.store(::getpid());
  ring->record_->heartbeat_ns.store(steady_ns());
  return ring;
}

std::unique_ptr<OpRing> OpRing::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return nullptr;
  if (fd < 0) throw SystemError(fmt::format("cannot open '{}': {}", path, std::strerror(errno)));
  std::unique_ptr<OpRing> ring(new OpRing);
  ring->record_ = map_file(fd, path);
  if (ring->record_->host.load() != host_hash()) return nullptr;
  return ring;
}

OpRing::~OpRing() {
  if (record_) ::munmap(record_, sizeof(RankRecord));
}

int OpRing::add_group(uint64_t id, std::string_view axis) {
  for (int slot = 0; slot < RankRecord::kGroups; ++slot) {
    GroupRecord& group = record_->groups[slot];
    if (group.id.load() != 0) continue;
    copy_text(group.axis, sizeof(group.axis), axis);
    group.enqueued.store(0);
    group.id.store(id);
    return slot;
  }
  return -1;
}

void OpRing::remove_group(int slot) {
  if (slot >= 0) record_->groups[slot].id.store(0);
}

void OpRing::enqueued(Op* op) {
  constexpr auto relaxed = std::memory_order_relaxed;
  op->ring_index = record_->next_op.load(relaxed);
  OpRecord& record = record_->ops[op->ring_index % RankRecord::kOps];
  record.sequence.store(op->sequence, relaxed);
  record.bytes.store(op->bytes, relaxed);
  record.enqueued_ns.store(steady_ns(), relaxed);
  record.done_ns.store(0, relaxed);
  record.group_slot.store(op->group->ring_slot, relaxed);
  record.peer.store(static_cast<int16_t>(op->peer < 0 ? -1 : op->group->ranks[static_cast<size_t>(op->peer)]), relaxed);
  record.kind.store(op->kind, relaxed);
  record.state.store(OpState::kOpen, relaxed);
  record_->next_op.store(op->ring_index + 1, std::memory_order_release);
  if (op->peer < 0 && op->group->ring_slot >= 0)
    record_->groups[op->group->ring_slot].enqueued.store(op->sequence + 1, std::memory_order_release);
}

void OpRing::finished(const Op& op) {
  OpRecord& record = record_->ops[op.ring_index % RankRecord::kOps];
  if (record_->next_op.load() - op.ring_index > RankRecord::kOps) return;  // overwritten
  record.done_ns.store(steady_ns(), std::memory_order_relaxed);
  record.state.store(OpState::kDone, std::memory_order_release);
}

void OpRing::started_waiting(const Op& op) {
  record_->waiting_for.store(op.ring_index);
  record_->waiting_since_ns.store(steady_ns());
}

void OpRing::stopped_waiting() { record_->waiting_since_ns.store(0, std::memory_order_release); }

void OpRing::set_status(RankStatus status, std::string_view error) {
  copy_text(record_->error, sizeof(record_->error), error);
  record_->status.store(status);
}

std::string OpRing::last_operations(int count) const {
  const uint64_t next = record_->next_op.load();
  const int64_t now = steady_ns();
  std::string out;
  for (uint64_t i = next; i > 0 && next - i < static_cast<uint64_t>(std::min(count, RankRecord::kOps)); --i) {
    const OpRecord& op = record_->ops[(i - 1) % RankRecord::kOps];
    const int slot = op.group_slot.load();
    const bool done = op.state.load() == OpState::kDone;
    out += fmt::format("  #{} {} of '{}'", op.sequence.load(), op_kind_name(op.kind.load()),
                       slot < 0 ? std::string("?") : bounded(record_->groups[slot].axis, sizeof(record_->groups[slot].axis)));
    if (op.peer.load() >= 0) out += fmt::format(" {} rank {}", op.kind.load() == OpKind::kSend ? "to" : "from", op.peer.load());
    out += fmt::format(", {} bytes, {} {:.1f} s{}\n", op.bytes.load(), done ? "done" : "open for",
                       1e-9 * static_cast<double>(now - (done ? op.done_ns : op.enqueued_ns).load()), done ? " ago" : "");
  }
  return out.empty() ? "  none\n" : out;
}

const OpRecord* OpRing::find(uint64_t group_id, uint64_t sequence) const {
  const uint64_t next = record_->next_op.load();
  for (uint64_t i = next; i > 0 && next - i < RankRecord::kOps; --i) {
    const OpRecord& op = record_->ops[(i - 1) % RankRecord::kOps];
    const int slot = op.group_slot.load();
    if (slot >= 0 && op.peer.load() < 0 && op.sequence.load() == sequence && record_->groups[slot].id.load() == group_id)
      return &op;
  }
  return nullptr;
}

}  // namespace weft
