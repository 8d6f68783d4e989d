#include "weft/comm/watchdog.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "weft/base/log.h"

namespace weft {
namespace {

constexpr double kLook = 0.1;         // seconds between two looks
constexpr int kRanks = 16, kOps = 6;  // of a report

double seconds_since(int64_t ns) { return 1e-9 * static_cast<double>(steady_ns() - ns); }

std::string rank_list(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

bool is_gone(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

}  // namespace

// What a rank waits for, as its ring says.
struct Watchdog::Wait {
  int rank = 0;
  OpKind kind = OpKind::kBarrier;
  uint64_t group = 0, sequence = 0, ring_index = 0;
  int64_t bytes = 0;
  int peer = -1;
  double seconds = 0;
  std::string axis;
  std::string text() const {
    return fmt::format("{} #{} of '{}'{} ({} bytes)", op_kind_name(kind), sequence, axis,
                       peer < 0 ? "" : fmt::format(" {} rank {}", kind == OpKind::kSend ? "to" : "from", peer), bytes);
  }
};

bool claim_to_speak(RankContext* rank) {
  if (rank->host_ring->record().spoken_for.exchange(1) != 0) return false;
  return rank->speaks = true;
}

Watchdog::Watchdog(WatchdogOptions options, std::vector<OpRing*> rings, std::vector<RankContext*> local, JobFailure* failure)
    : options_(options), rings_(std::move(rings)), local_(std::move(local)), failure_(failure) {
  thread_ = std::thread([this] { loop(); });
}

Watchdog::~Watchdog() {
  stop_.store(true);
  event_.signal();
  thread_.join();
}

void Watchdog::loop() {
  bool suspected = false;
  int64_t failed_ns = 0;
  while (!stop_.load()) {
    const int32_t seen = event_.value();
    for (RankContext* rank : local_) rank->ring->record().heartbeat_ns.store(steady_ns());
    if (!failure_->failed()) {
      // Twice in a row: a record may have been half renewed, or the whole job stopped and continued.
      const std::string found = verdict();
      if (!found.empty() && suspected) failure_->fail(found);
      suspected = !found.empty();
    }
    if (failure_->failed()) {
      const std::string reason = failure_->reason();
      for (RankContext* rank : local_) rank->ring->set_status(RankStatus::kFailed, reason);
      announce();
      if (failed_ns == 0) failed_ns = steady_ns();
      if (seconds_since(failed_ns) > options_.heartbeat_s) {
        log_error("a rank does not come back: the process ends");
        ::_exit(failure_->exit_code());
      }
    }
    if (!stop_.load()) event_.wait(seen, kLook);
  }
}

void Watchdog::announce() {
  if (announced_.exchange(true)) return;
  RankContext* first = local_.front();
  const bool speaks =
      std::any_of(local_.begin(), local_.end(), [](const RankContext* r) { return r->speaks; }) || claim_to_speak(first);
  // A command or recipe that cannot be meant is no matter of communication.
  const std::string reason = failure_->reason(), all = failure_->exit_code() == kExitUsage ? reason : reason + "\n" + report();
  set_error_told(reason);
  if (log_level() > LogLevel::kError) return;
  if (speaks) write_log_terminal(LogLevel::kError, all);
  for (const RankContext* rank : local_) write_log_file(rank->rank, LogLevel::kError, all);
}

std::string Watchdog::verdict() const {
  if (std::string found = lost_rank(); !found.empty()) return found;
  for (const RankContext* rank : local_) {
    Wait wait;
    if (!find_wait(rank->rank, &wait)) continue;
    if (std::string found = judge(wait); !found.empty()) return found;
  }
  return {};
}

std::string Watchdog::lost_rank() const {
  for (size_t r = 0; r < rings_.size(); ++r) {
    if (!rings_[r]) continue;
    const RankRecord& record = rings_[r]->record();
    const RankStatus status = record.status.load();
    if (status == RankStatus::kFailed) return record.error;  // the first reason, not what followed from it
    const auto pid = static_cast<pid_t>(record.pid.load());
    if (status == RankStatus::kReturned || pid == ::getpid()) continue;
    if (is_gone(pid)) return fmt::format("rank {} died (process {} is gone)", r, pid);
    if (const double silent = seconds_since(record.heartbeat_ns.load()); silent > options_.heartbeat_s)
      return fmt::format("rank {} hangs: no sign of life of process {} for {:.1f} s (stopped?)", r, pid, silent);
  }
  return {};
}

bool Watchdog::find_wait(int rank, Wait* out) const {
  const OpRing* ring = rings_[static_cast<size_t>(rank)];
  if (!ring) return false;
  const RankRecord& record = ring->record();
  const int64_t since = record.waiting_since_ns.load();
  const uint64_t index = record.waiting_for.load();
  if (since == 0 || record.next_op.load() - index > RankRecord::kOps) return false;
  const OpRecord& op = record.ops[index % RankRecord::kOps];
  const int slot = op.group_slot.load();
  if (slot < 0 || op.state.load() == OpState::kDone) return false;
  const GroupRecord& group = record.groups[slot];
  *out = {rank,
          op.kind.load(),
          group.id.load(),
          op.sequence.load(),
          index,
          op.bytes.load(),
          op.peer.load(),
          seconds_since(since),
          std::string(group.axis, ::strnlen(group.axis, sizeof(group.axis)))};
  return true;
}

std::vector<int> Watchdog::members(uint64_t group) const {
  for (RankContext* rank : local_) {
    std::lock_guard lock(rank->groups_mutex);
    if (const auto found = rank->groups.find(group); found != rank->groups.end()) return found->second;
  }
  return {};
}

bool Watchdog::arrived(int rank, uint64_t group, uint64_t sequence) const {
  for (const GroupRecord& record : rings_[static_cast<size_t>(rank)]->record().groups)
    if (record.id.load() == group) return record.enqueued.load() > sequence;
  return false;
}

// Ranks in sight that have not enqueued what `wait` waits for.
std::vector<int> Watchdog::missing(const Wait& wait) const {
  std::vector<int> out;
  for (const int r : members(wait.group))
    if (rings_[static_cast<size_t>(r)] && !arrived(r, wait.group, wait.sequence)) out.push_back(r);
  return out;
}

// Ranks of other hosts from which the waiting rank lacks something: they have no ring here, so the engine is asked.
std::vector<int> Watchdog::missing_out_of_sight(const Wait& wait) const {
  std::vector<int> out;
  for (RankContext* rank : local_) {
    if (rank->rank != wait.rank) continue;
    for (const int r : rank->queue->awaited(wait.ring_index))
      if (!rings_[static_cast<size_t>(r)] && std::find(out.begin(), out.end(), r) == out.end()) out.push_back(r);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string Watchdog::judge(const Wait& wait) const {
  const bool stalled = wait.seconds > options_.stall_s;
  std::vector<int> absent = wait.peer < 0 ? missing(wait) : std::vector<int>{wait.peer};
  for (const int r : absent) {
    const OpRing* ring = rings_[static_cast<size_t>(r)];
    // A message of a rank that has returned may still be on its way.
    if (ring && ring->record().status.load() == RankStatus::kReturned && (wait.peer < 0 || stalled))
      return fmt::format("rank {} has returned, and rank {} waits for it in {}", r, wait.rank, wait.text());
  }
  if (!stalled) return {};
  if (wait.peer < 0) {
    if (std::string found = disagreement(wait); !found.empty()) return found;
    if (std::string found = circle(wait); !found.empty()) return found;
  }
  if (wait.seconds < options_.timeout_s) return {};
  const std::vector<int> unseen = missing_out_of_sight(wait);
  if (absent.empty() && !unseen.empty())
    return fmt::format("{} on other hosts did not come to {}, where rank {} has waited for {:.1f} s", rank_list(unseen),
                       wait.text(), wait.rank, wait.seconds);
  if (absent.empty())
    return fmt::format("{} is stuck for {:.1f} s on rank {} although all ranks in sight called it", wait.text(), wait.seconds,
                       wait.rank);
  // Who waits itself is held up by another.
  std::vector<int> idle = absent;
  std::erase_if(idle, [&](int r) {
    Wait other;
    return find_wait(r, &other);
  });
  return fmt::format("{}{} did not come to {}, where rank {} has waited for {:.1f} s", rank_list(idle.empty() ? absent : idle),
                     unseen.empty() ? "" : fmt::format(" and, on other hosts, {}", rank_list(unseen)), wait.text(), wait.rank,
                     wait.seconds);
}

std::string Watchdog::disagreement(const Wait& wait) const {
  std::string others;
  for (const int r : members(wait.group)) {
    const OpRing* ring = rings_[static_cast<size_t>(r)];
    const OpRecord* op = ring ? ring->find(wait.group, wait.sequence) : nullptr;
    if (!op) continue;
    const OpKind kind = op->kind.load();
    const int64_t bytes = op->bytes.load();
    if (kind != wait.kind || (bytes != wait.bytes && kind != OpKind::kAllToAll))
      others += fmt::format("; rank {} calls {} ({} bytes)", r, op_kind_name(kind), bytes);
  }
  if (others.empty()) return {};
  return fmt::format("ranks disagree at #{} of '{}': rank {} calls {} ({} bytes){}", wait.sequence, wait.axis, wait.rank,
                     op_kind_name(wait.kind), wait.bytes, others);
}

// Follows who waits for whom: each rank on the way waits for the first absent one that waits itself.
std::string Watchdog::circle(const Wait& start) const {
  std::vector<Wait> path{start};
  for (;;) {
    Wait next;
    bool found = false;
    for (const int r : missing(path.back())) {
      if (!find_wait(r, &next) || next.peer >= 0 || next.seconds < options_.stall_s) continue;
      found = true;
      break;
    }
    if (!found) return {};
    const auto again = std::find_if(path.begin(), path.end(), [&](const Wait& w) { return w.rank == next.rank; });
    if (again != path.end()) {
      std::vector<std::string> lines;
      for (auto w = again; w != path.end(); ++w) lines.push_back(fmt::format("rank {} in {}", w->rank, w->text()));
      return fmt::format("ranks wait for each other: {}", fmt::join(lines, "; "));
    }
    path.push_back(next);
  }
}

std::string Watchdog::report() const {
  std::string out;
  int shown = 0;
  for (size_t r = 0; r < rings_.size(); ++r) {
    if (!rings_[r]) continue;
    if (++shown > kRanks) return out + "(more ranks)\n";
    Wait wait;
    out += fmt::format(
        "last operations of rank {}{}:\n{}", r,
        find_wait(static_cast<int>(r), &wait) ? fmt::format(" (waits for {:.1f} s in {})", wait.seconds, wait.text()) : "",
        rings_[r]->last_operations(kOps));
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

}  // namespace weft
