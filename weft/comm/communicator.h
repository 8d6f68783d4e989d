#pragma once
// Communication between ranks: one interface on (pointer, count, dtype), the same bits on every engine (docs/communicator.md).
//
// A Communicator is one rank's view of a group of ranks: the world, or an axis of a mesh. It is a small handle, valid inside
// run_ranks (launch.h), to be copied freely and used by one thread at a time.
// - Collectives: every member calls the same ones, with sizes that fit, in the same order. Groups may overlap; where two ranks
// share
//   two groups, both enqueue on them in the same order.
// - Counts are elements; a count may be 0 and counts may be uneven, but every member passes what the others expect. Offsets are
// the
//   sums of the counts before. Pointers need the alignment of the dtype; host memory, but for communicators made by on_device.
// - Every operation is enqueued and returns a Work. Buffers are the operation's until wait() returns: inputs are not written,
// outputs
//   not touched. Input and output overlap only where the operation says so.
// - `purpose` names what the bytes are for ("unshard", "grad", "refit") in CommStats; any short text.
// - Errors: ValueError for arguments that cannot be meant (negative counts, ranks that do not exist); PeerLostError (exit code
// 76) from
//   any operation and wait() once the job has failed.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/comm/comm_stats.h"
#include "weft/comm/job_failure.h"
#include "weft/comm/reduce.h"

namespace weft {

struct Op;
struct Group;
struct RankContext;

// One operation under way. Destroying it unfinished waits; while an exception unwinds it takes the operation back instead, after
// which the job cannot go on (the peers are told by run_ranks).
class [[nodiscard]] Work {
 public:
  Work() = default;  // done
  explicit Work(std::shared_ptr<Op> op) : op_(std::move(op)) {}
  Work(Work&& other) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work();

  void wait();        // throws PeerLostError
  bool done() const;  // never blocks; with inline progress nothing moves between calls of the communicator
 private:
  void finish() noexcept;
  std::shared_ptr<Op> op_;
};

// Where a rank's device memory is and how its work there is ordered (nccl_engine.h).
struct DeviceOptions {
  int device = 0;                  // CUDA's number in this process; one rank a device
  void* compute_stream = nullptr;  // cudaStream_t on which buffers are written and read; null: CUDA's default stream
  bool background = true;          // a thread of the rank launches what is not launched at once and looks whether it is over
  bool operator==(const DeviceOptions&) const = default;
};

// Memory that the ranks of a process share, for gathered data that all of them only read. Where ranks are processes each has its
// own. A handle; the memory goes with the last handle of the last rank.
class SharedBuffer {
 public:
  SharedBuffer() = default;
  // What the last gather brought.
  const std::byte* data() const { return memory_ ? memory_->data() + mine_->offset : nullptr; }
  int64_t bytes() const { return bytes_; }
  // This rank has read what was gathered: the others may write again. Needed between two gathers into the same buffer.
  void release() {
    if (mine_) mine_->held = false;
  }

 private:
  friend class Communicator;
  struct Memory {
    explicit Memory(int64_t bytes);
    ~Memory();
    std::byte* data() const { return data_; }
    std::byte* data_;
  };
  std::shared_ptr<Memory> memory_;
  struct Mine {          // of this rank's handles
    bool held = false;   // gathered and not yet released
    int64_t offset = 0;  // of the last gather's half
  };
  std::shared_ptr<Mine> mine_;
  int64_t second_half_ = 0;  // where it begins; 0: there is one
  uint64_t group_id_ = 0;
  int64_t bytes_ = 0;
};

class Communicator {
 public:
  Communicator(RankContext* context, std::shared_ptr<Group> group);

  int rank() const;  // of this rank in the group
  int size() const;
  const std::string& axis() const;
  int world_rank(int member) const;
  int world_rank() const { return world_rank(rank()); }

  // The communicator of `ranks` (ranks of this one, distinct, in the order they shall have). Collective over those ranks alone,
  // all of which give the same list and name. Waits for the open operations of this rank.
  Communicator sub(std::span<const int> ranks, const std::string& axis) const;

  // The communicator of the same ranks whose operations take device memory, by NCCL: nccl_engine.h says in which order streams
  // see the bytes. Collective; all of a rank's have the same options. Its sub() makes communicators of its kind; it has no
  // shared_buffer. SystemError where the build has no NCCL, the libraries are missing or there is no such device.
  Communicator on_device(const DeviceOptions& options) const;

  // all = the members' parts in rank order; counts[r] elements from rank r. `mine` may be its place in `all`.
  Work all_gather(const void* mine, void* all, std::span<const int64_t> counts, DType dtype, std::string_view purpose = {}) const;
  // mine = the members' parts for this rank, joined; all[...] has counts[r] elements for rank r. `mine` may be its place in
  // `all`.
  Work reduce_scatter(const void* all, void* mine, std::span<const int64_t> counts, DType dtype, ReduceOp op,
                      std::string_view purpose = {}) const;
  // `out` may be `in`.
  Work all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op, std::string_view purpose = {}) const;
  // send_counts[r] elements go to rank r, recv_counts[r] come from it.
  Work all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv, std::span<const int64_t> recv_counts,
                  DType dtype, std::string_view purpose = {}) const;
  // As all_to_all, of boxes of tensors where they lie: send[r] go to rank r and fill recv[r] there, box by box, of equal sizes.
  // Threads copy from the sender's memory to its place at the receiver, once. Processes send from and receive into boxes that are
  // long and lie in one run, and pack and unpack the others in `staging`, of as many bytes as packed_bytes says of what the rank
  // sends to and receives from others (null: memory of the operation's own). What a rank sends to itself is copied, or left where
  // it already lies.
  Work exchange(std::vector<std::vector<MemoryBox>> send, std::vector<std::vector<MemoryBox>> recv, std::string_view purpose = {},
                std::byte* staging = nullptr) const;
  static int64_t packed_bytes(std::span<const MemoryBox> boxes);
  // Whether the ranks read each other's memory, and an exchange needs none of its own.
  bool shares_memory() const;
  Work broadcast(void* data, int64_t count, DType dtype, int root, std::string_view purpose = {}) const;
  // `all` counts on the root only; `mine` may be its place in `all`.
  Work gather(const void* mine, void* all, std::span<const int64_t> counts, DType dtype, int root,
              std::string_view purpose = {}) const;
  Work scatter(const void* all, void* mine, std::span<const int64_t> counts, DType dtype, int root,
               std::string_view purpose = {}) const;
  // Between two members, matched in order; not with oneself. The two call no collective for it, and need no order towards
  // collectives.
  Work send(const void* data, int64_t count, DType dtype, int to, std::string_view purpose = {}) const;
  Work recv(void* data, int64_t count, DType dtype, int from, std::string_view purpose = {}) const;
  Work barrier(std::string_view purpose = {}) const;

  // Collective; all members give the same number.
  SharedBuffer shared_buffer(int64_t bytes) const;
  // As all_gather into `into`, where the ranks of a process write their own parts only. Waits (asynchronously) until every member
  // has come here, that is, has released what it gathered before. The result may be read from wait() to release().
  Work all_gather_shared(const void* mine, std::span<const int64_t> counts, DType dtype, SharedBuffer& into,
                         std::string_view purpose = {}) const;

  // Of this rank on all its communicators.
  CommStats& stats() const;
  // How long this rank has stood in communication, on all its communicators, instead of computing [s].
  double seconds_waited() const;

 private:
  std::shared_ptr<Op> new_op(OpKind kind, DType dtype) const;
  Work enqueue(std::shared_ptr<Op> op, std::string_view purpose) const;
  void check_counts(std::span<const int64_t> counts, const char* name) const;
  int check_member(int member, const char* name) const;

  RankContext* context_;
  std::shared_ptr<Group> group_;
};

}  // namespace weft
