#include "weft/comm/mpi_engine.h"

#include "weft/base/error.h"

#ifdef WEFT_HAVE_MPI
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>

#include "weft/base/clock.h"
#include "weft/comm/copy_bytes.h"
#include "weft/comm/group_key.h"

namespace weft {
namespace {

constexpr int64_t kSegment = 1 << 20;   // bytes of a part to be joined
constexpr int64_t kMessage = 1 << 29;   // bytes of one message otherwise; MPI counts in int
constexpr double kNap = 200e-6;         // seconds, where the end of a job waits

std::mutex mpi_mutex;  // around every call
std::atomic<bool> abandoned{false};

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw PeerLostError(fmt::format("{}: {}", what, std::string_view(text, static_cast<size_t>(length))));
}

struct MpiGroup final : Group {
  MPI_Comm comm = MPI_COMM_NULL;  // lives until MPI ends: freeing it would be one more collective
};

// The open requests of a step, or of one segment of it.
struct Requests {
  std::vector<MPI_Request> open;
  std::vector<int64_t> expected;  // bytes of a receive, -1 of a send
  std::vector<int> peers;
};

struct MpiState final : EngineState {
  bool begun = false;
  Requests requests;                     // of a step that stores
  struct Slot {
    Requests requests;
    std::unique_ptr<std::byte[]> staging;  // one segment a peer
    int64_t segment = -1;  // none: -1
  } slots[2];
  int64_t next_segment = 0, segments = 0;
};

// At most 15 bits, all that MPI promises. The operation is in it, so that peers that disagree never match: the watchdog compares
// them. Messages of equal tag keep their order.
int message_tag(const Op& op) {
  const OpKind kind = op.kind == OpKind::kRecv ? OpKind::kSend : op.kind;
  return static_cast<int>((op.sequence & 0x3ff) << 5 | static_cast<uint64_t>(kind) << 1 | op.step);
}

class MpiEngine final : public CommEngine {
 public:
  std::shared_ptr<Group> make_group(const std::vector<int>& ranks, const std::string& axis, int world_rank) override {
    auto group = std::make_shared<MpiGroup>();
    fill_group(group.get(), next_group_key(&made_, ranks, axis), ranks, axis, world_rank);
    std::lock_guard lock(mpi_mutex);
    MPI_Group world, members;
    check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
    check_mpi(MPI_Group_incl(world, group->size(), ranks.data(), &members), "MPI_Group_incl");
    check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, members, static_cast<int>(group->id & 0x7fff), &group->comm), "MPI_Comm_create_group");
    check_mpi(MPI_Comm_set_errhandler(group->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    MPI_Group_free(&members);
    MPI_Group_free(&world);
    return group;
  }

  void post(Op& op) override { op.state = std::make_unique<MpiState>(); }

  bool advance(Op& op, bool* moved) override {
    if (abandoned.load()) return false;
    std::lock_guard lock(mpi_mutex);
    while (op.steps[op.step].joins ? join(op, moved) : store(op, moved)) {
      if (op.step + 1 == op.steps.size()) return true;
      ++op.step;
      op.state = std::make_unique<MpiState>();
      *moved = true;
    }
    return false;
  }

  // Requests cannot be taken back: from here on nobody calls MPI, and nothing is written any more.
  void withdraw(Op&) override { abandon_mpi(); }

  std::vector<int> awaited(const Op& op) const override {
    std::vector<int> out;
    const auto* mine = static_cast<const MpiState*>(op.state.get());
    if (!mine) return out;
    for (const Requests* requests : {&mine->requests, &mine->slots[0].requests, &mine->slots[1].requests})
      for (size_t i = 0; i < requests->open.size(); ++i)
        if (requests->open[i] != MPI_REQUEST_NULL && requests->expected[i] >= 0)
          out.push_back(op.group->ranks[static_cast<size_t>(requests->peers[i])]);
    return out;
  }

  bool shares_memory() const override { return false; }
  bool must_poll() const override { return true; }

 private:
  static MpiState& state(Op& op) { return static_cast<MpiState&>(*op.state); }

  static void send(Op& op, int peer, const std::byte* data, int64_t bytes, Requests* out) {
    out->open.emplace_back();
    out->expected.push_back(-1);
    out->peers.push_back(peer);
    check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, message_tag(op), static_cast<MpiGroup&>(*op.group).comm, &out->open.back()),
              "MPI_Isend");
  }
  static void receive(Op& op, int peer, std::byte* data, int64_t bytes, Requests* out) {
    out->open.emplace_back();
    out->expected.push_back(bytes);
    out->peers.push_back(peer);
    check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, message_tag(op), static_cast<MpiGroup&>(*op.group).comm, &out->open.back()),
              "MPI_Irecv");
  }

  // True when none is open. Compares sizes of what came.
  static bool test(const Op& op, Requests* requests, bool* moved) {
    const int n = static_cast<int>(requests->open.size());
    if (n == 0) return true;
    std::vector<int> which(static_cast<size_t>(n));
    std::vector<MPI_Status> statuses(static_cast<size_t>(n));
    int count = 0;
    const int code = MPI_Testsome(n, requests->open.data(), &count, which.data(), statuses.data());
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) check_mpi(code, "MPI_Testsome");
    if (count == MPI_UNDEFINED) {
      *requests = {};
      return true;
    }
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const size_t r = static_cast<size_t>(which[i]);
      const int error = code == MPI_SUCCESS ? MPI_SUCCESS : statuses[i].MPI_ERROR;
      int bytes = 0;
      if (requests->expected[r] >= 0 && error == MPI_SUCCESS) check_mpi(MPI_Get_count(&statuses[i], MPI_BYTE, &bytes), "MPI_Get_count");
      if (error == MPI_ERR_TRUNCATE || (requests->expected[r] >= 0 && error == MPI_SUCCESS && bytes != requests->expected[r]))
        throw PeerLostError(fmt::format("ranks disagree on {}: rank {} expects {} bytes from rank {}, which sends {}", op_text(op),
                                        op.group->ranks[static_cast<size_t>(op.group->me)], requests->expected[r],
                                        op.group->ranks[static_cast<size_t>(requests->peers[r])], error == MPI_SUCCESS ? std::to_string(bytes) : "more"));
      check_mpi(error, "a message");
      *moved = true;
    }
    if (std::any_of(requests->open.begin(), requests->open.end(), [](MPI_Request r) { return r != MPI_REQUEST_NULL; })) return false;
    *requests = {};
    return true;
  }

  bool store(Op& op, bool* moved) {
    const Group& group = *op.group;
    const Step& step = op.steps[op.step];
    MpiState& mine = state(op);
    if (!mine.begun) {
      mine.begun = true;
      *moved = true;
      const auto begin = [&](int peer, bool sent, const std::byte* from, std::byte* to, int64_t bytes) {
        for (int64_t at = 0; at == 0 ? bytes >= 0 : at < bytes; at += kMessage) {
          const int64_t length = std::min(kMessage, bytes - at);
          if (sent)
            send(op, peer, from + at, length, &mine.requests);
          else
            receive(op, peer, to + at, length, &mine.requests);
        }
      };
      for (const bool sent : {false, true}) {  // receives first, so that nothing arrives unexpected
        for (const Part& part : step.parts)
          if (part.sent == sent) begin(part.peer, sent, part.data, part.data, part.bytes);
        for (int i = 1; i < group.size() && step.parts.empty(); ++i) {
          const int peer = (group.me + i) % group.size();
          const Piece& piece = step.pieces[static_cast<size_t>(peer)];
          begin(peer, sent, piece.send, piece.recv, sent ? piece.send_bytes : piece.recv_bytes);
        }
      }
      const Piece& own = step.pieces[static_cast<size_t>(group.me)];
      copy_bytes(own.recv, own.send, own.recv_bytes);
    }
    return test(op, &mine.requests, moved);
  }

  // Every rank has the same two segments under way: the lowest unfinished one of all ranks can always end.
  bool join(Op& op, bool* moved) {
    const Group& group = *op.group;
    const Step& step = op.steps[op.step];
    MpiState& mine = state(op);
    const int64_t own = op.out_count * dtype_bytes(op.dtype);
    if (!mine.begun) {
      mine.begun = true;
      int64_t largest = own;
      for (const Piece& piece : step.pieces) largest = std::max(largest, piece.send_bytes);
      mine.segments = std::max<int64_t>(1, (largest + kSegment - 1) / kSegment);
    }
    bool open = false;
    for (MpiState::Slot& slot : mine.slots) {
      if (slot.segment >= 0) {
        if (!test(op, &slot.requests, moved)) {
          open = true;
          continue;
        }
        const int64_t at = slot.segment * kSegment, bytes = std::min(kSegment, own - at);
        if (bytes > 0) {
          const int64_t width = std::min(kSegment, own);
          std::vector<const std::byte*> parts;
          for (int r = 0, place = 0; r < group.size(); ++r)
            parts.push_back(r == group.me ? step.pieces[static_cast<size_t>(r)].send + at : slot.staging.get() + width * place++);
          reduce_parts(parts, op.out + at, bytes / dtype_bytes(op.dtype), op.dtype, op.reduce);
        }
        slot.segment = -1;
        *moved = true;
      }
      if (mine.next_segment < mine.segments) {
        slot.segment = mine.next_segment++;
        begin_segment(op, own, &slot);
        open = true;
      }
    }
    return !open;
  }

  static void begin_segment(Op& op, int64_t own, MpiState::Slot* slot) {
    const Group& group = *op.group;
    const int64_t at = slot->segment * kSegment, bytes = std::min(kSegment, own - at);
    const int64_t width = std::min(kSegment, own);
    const bool first = slot->segment == 0;  // goes even where it is empty
    if (!slot->staging) slot->staging.reset(new std::byte[static_cast<size_t>(width * (group.size() - 1))]);
    for (int r = 0, place = 0; r < group.size(); ++r) {
      if (r == group.me) continue;
      if (bytes > 0 || first) receive(op, r, slot->staging.get() + width * place, std::max<int64_t>(bytes, 0), &slot->requests);
      ++place;
    }
    for (int i = 1; i < group.size(); ++i) {
      const int to = (group.me + i) % group.size();
      const Piece& piece = op.steps[op.step].pieces[static_cast<size_t>(to)];
      const int64_t length = std::min(kSegment, piece.send_bytes - at);
      if (length > 0 || first) send(op, to, piece.send + at, std::max<int64_t>(length, 0), &slot->requests);
    }
  }

  std::map<std::string, int> made_;
};

void end_mpi() {
  if (abandoned.load()) return;
  int ended = 0;
  MPI_Finalized(&ended);
  if (!ended) MPI_Finalize();
}

}  // namespace

MpiWorld start_mpi() {
  std::lock_guard lock(mpi_mutex);
  int started = 0;
  MPI_Initialized(&started);
  if (!started) {
    int level = MPI_THREAD_SINGLE;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS) throw SystemError("MPI_Init_thread failed");
    if (level < MPI_THREAD_SERIALIZED) throw SystemError("this MPI does not allow calls from more than one thread (MPI_THREAD_SERIALIZED)");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    std::atexit(end_mpi);
  }
  MpiWorld world;
  MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world.size);
  return world;
}

std::unique_ptr<CommEngine> make_mpi_engine() { return std::make_unique<MpiEngine>(); }

int64_t mpi_broadcast(int64_t value) {
  std::lock_guard lock(mpi_mutex);
  check_mpi(MPI_Bcast(&value, 1, MPI_INT64_T, 0, MPI_COMM_WORLD), "MPI_Bcast");
  return value;
}

void mpi_barrier() {
  std::lock_guard lock(mpi_mutex);
  check_mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
}

void mpi_leave(const JobFailure& failure) {
  MPI_Request request;
  int done = 0;
  {
    std::lock_guard lock(mpi_mutex);
    check_mpi(MPI_Ibarrier(MPI_COMM_WORLD, &request), "MPI_Ibarrier");
  }
  for (;;) {
    {
      std::lock_guard lock(mpi_mutex);
      check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    }
    if (done || failure.failed()) return;
    real_clock().sleep(kNap);
  }
}

void abandon_mpi() { abandoned.store(true); }

}  // namespace weft

#else

namespace weft {
namespace {
[[noreturn]] void no_mpi() { throw SystemError("the program was started by an MPI launcher, and this build has no MPI: install libopenmpi-dev and build again"); }
}  // namespace

MpiWorld start_mpi() { no_mpi(); }
std::unique_ptr<CommEngine> make_mpi_engine() { no_mpi(); }
int64_t mpi_broadcast(int64_t) { no_mpi(); }
void mpi_barrier() { no_mpi(); }
void mpi_leave(const JobFailure&) { no_mpi(); }
void abandon_mpi() {}

}  // namespace weft

#endif
