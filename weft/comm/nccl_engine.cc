#include "weft/comm/nccl_engine.h"

#include "weft/base/error.h"
#include "weft/comm/communicator.h"
#include "weft/comm/rank_context.h"

#ifdef WEFT_HAVE_NCCL
#include <algorithm>
#include <map>
#include <utility>

#include "weft/base/clock.h"
#include "weft/base/log.h"
#include "weft/comm/device_join.h"
#include "weft/comm/group_key.h"

#include "weft/comm/nccl_api.h"

namespace weft {
namespace {

constexpr int64_t kStaging = 128 << 20;  // bytes for the peers' parts of one segment, all together
constexpr double kNap = 1e-3;            // seconds, where the end of a job waits

// An NCCL communicator and its stream. Operations on it are launched in the order of their tickets, which is that of the program.
struct Channel {
  int size = 1, me = 0;  // of the communicator: all members, or a sender (0) and a receiver (1)
  ncclUniqueId id{};
  Work id_work;           // brings it here, or to the others
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  bool ready = false;     // comm is set up
  bool aborted = false;
  uint64_t tickets = 0;   // given out; by the enqueuing thread
  uint64_t launched = 0;  // under the queue's lock, like all below
  std::byte* staging = nullptr;
  int64_t staging_bytes = 0;
  std::vector<std::byte*> outgrown;  // still read by what was launched before; freed at the end, because cudaFree waits for the device
};

struct NcclGroup final : Group {
  std::map<int, Channel*> channels;  // -1: collectives; 2 * peer: sends to it; 2 * peer + 1: receives from it
};

struct GpuEvent {
  GpuEvent() { check_cuda(gpu_api().cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  ~GpuEvent() { gpu_api().cudaEventDestroy(event); }
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;
  cudaEvent_t event = nullptr;
};

struct NcclState final : EngineState {
  Channel* channel = nullptr;
  uint64_t ticket = 0;
  GpuEvent inputs, over;
  bool begun = false, sent = false, launched = false;  // `sent`: this step's, or segment's, messages have been given to NCCL
  int64_t at = 0;  // of a step that joins: where its segment begins [bytes]
};

struct Message {
  int peer;  // of the channel
  const std::byte* send;
  std::byte* recv;
  int64_t bytes;
};

class NcclEngine final : public CommEngine {
 public:
  NcclEngine(RankContext* context, const DeviceOptions& options)
      : context_(context), device_(options.device), compute_(static_cast<cudaStream_t>(options.compute_stream)), api_(gpu_api()) {
    const int count = gpu_count();
    if (device_ < 0 || device_ >= count)
      throw SystemError(fmt::format("rank {} wants CUDA device {}, and {}", context->rank, device_,
                                    count == 0 ? "there is no GPU here (nvidia-smi shows what the driver sees)"
                                               : fmt::format("this process may use {} (CUDA_VISIBLE_DEVICES): start one rank a device", count)));
    set_device();
    prepare_join(device_, compute_);
  }

  ~NcclEngine() override {
    for (const auto& channel : channels_) {
      abort(*channel);
      release(*channel);
    }
  }

  std::shared_ptr<Group> make_group(const std::vector<int>& ranks, const std::string& axis, int world_rank) override {
    auto group = std::make_shared<NcclGroup>();
    fill_group(group.get(), "device " + next_group_key(&made_, ranks, axis), ranks, axis, world_rank);
    return group;
  }

  void post(Op& op) override {
    set_device();
    check_pointers(op);
    auto state = std::make_unique<NcclState>();
    state->channel = &channel_of(op);
    check_cuda(api_.cudaEventRecord(state->inputs.event, compute_), "cudaEventRecord on the compute stream");
    state->ticket = state->channel->tickets++;
    op.state = std::move(state);
  }

  bool advance(Op& op, bool* moved) override {
    NcclState& mine = state(op);
    Channel& channel = *mine.channel;
    if (channel.aborted) return false;
    set_device();
    if (mine.launched) return over(op);
    if (mine.ticket != channel.launched || !ready(channel, moved)) return false;
    if (!mine.begun) {
      check_cuda(api_.cudaStreamWaitEvent(channel.stream, mine.inputs.event, 0), "cudaStreamWaitEvent");
      mine.begun = true;
    }
    for (;;) {
      if (!mine.sent) {
        give_messages(op);
        *moved = mine.sent = true;
      }
      if (!settled(channel)) return false;
      mine.sent = false;
      keep_own(op);
      if (next_segment(op)) continue;
      if (op.step + 1 == op.steps.size()) break;
      ++op.step;
    }
    check_cuda(api_.cudaEventRecord(mine.over.event, channel.stream), "cudaEventRecord");
    mine.launched = true;
    ++channel.launched;
    return over(op);
  }

  void withdraw(Op& op) override { abort(*state(op).channel); }

  bool shares_memory() const override { return false; }
  bool must_poll() const override { return true; }
  bool device_memory() const override { return true; }

  // All at once, and none waited for before the last has begun: members may hold their channels in another order. The work is done:
  // what NCCL has to say now is no failure.
  void leave() override {
    set_device();
    for (const auto& channel : channels_)
      if (channel->comm && !channel->aborted) api_.ncclCommFinalize(channel->comm);
    for (const auto& channel : channels_) {
      try {
        while (!settled(*channel) && !context_->failure->failed()) real_clock().sleep(kNap);
        if (channel->comm && !context_->failure->failed()) {
          const ncclComm_t comm = std::exchange(channel->comm, nullptr);
          check_nccl(api_.ncclCommDestroy(comm), "ncclCommDestroy");
        }
      } catch (const Error& error) {
        log_warn("the end of NCCL: {}", error.what());
      }
      abort(*channel);
      release(*channel);
    }
    channels_.clear();
  }

 private:
  static NcclState& state(Op& op) { return static_cast<NcclState&>(*op.state); }

  void set_device() const { check_cuda(api_.cudaSetDevice(device_), "cudaSetDevice"); }

  void check_pointer(const Op& op, const void* pointer) const {
    cudaPointerAttributes attributes{};
    check_cuda(api_.cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
    if (attributes.type == cudaMemoryTypeDevice && attributes.device == device_) return;
    throw ValueError(fmt::format("{}: a buffer is {}, and this communicator takes memory of device {}", op_text(op),
                                 attributes.type == cudaMemoryTypeDevice    ? fmt::format("on device {}", attributes.device)
                                 : attributes.type == cudaMemoryTypeManaged ? std::string("managed memory")
                                                                            : std::string("in host memory"),
                                 device_));
  }

  // One place of each buffer of the call.
  void check_pointers(const Op& op) const {
    const std::vector<Piece>& pieces = op.steps.front().pieces;
    const auto sends = std::find_if(pieces.begin(), pieces.end(), [](const Piece& p) { return p.send && p.send_bytes > 0; });
    const auto receives = std::find_if(pieces.begin(), pieces.end(), [](const Piece& p) { return p.recv && p.recv_bytes > 0; });
    if (sends != pieces.end()) check_pointer(op, sends->send);
    if (receives != pieces.end()) check_pointer(op, receives->recv);
    if (op.out && op.out_count > 0) check_pointer(op, op.out);
  }

  Channel& channel_of(const Op& op) {
    auto& group = static_cast<NcclGroup&>(*op.group);
    const bool receives = op.kind == OpKind::kRecv;
    const int key = op.peer < 0 ? -1 : 2 * op.peer + receives;
    if (const auto found = group.channels.find(key); found != group.channels.end()) return *found->second;
    auto channel = std::make_unique<Channel>();
    channel->size = op.peer < 0 ? group.size() : 2;
    channel->me = op.peer < 0 ? group.me : receives;
    check_cuda(api_.cudaStreamCreateWithFlags(&channel->stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    if (channel->size > 1) {
      if (channel->me == 0) check_nccl(api_.ncclGetUniqueId(&channel->id), "ncclGetUniqueId");
      const Communicator host(context_, group.host);
      if (op.peer < 0) {
        channel->id_work = host.broadcast(&channel->id, sizeof(channel->id), DType::kU8, 0, "setup");
      } else if (receives) {
        channel->id_work = host.recv(&channel->id, sizeof(channel->id), DType::kU8, op.peer, "setup");
      } else {
        channel->id_work = host.send(&channel->id, sizeof(channel->id), DType::kU8, op.peer, "setup");
      }
    }
    channels_.push_back(std::move(channel));
    return *(group.channels[key] = channels_.back().get());
  }

  // NCCL has done what it was last asked on the host: set up, launched, or ended.
  bool settled(const Channel& channel) const {
    if (!channel.comm) return true;
    ncclResult_t now = ncclSuccess;
    check_nccl(api_.ncclCommGetAsyncError(channel.comm, &now), "ncclCommGetAsyncError");
    check_nccl(now, "NCCL");
    return now == ncclSuccess;
  }

  bool ready(Channel& channel, bool* moved) {
    if (channel.ready) return true;
    if (channel.size > 1 && !channel.comm) {
      context_->queue->poll();  // nobody else may move the id
      if (channel.me > 0 && !channel.id_work.done()) return false;
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      check_nccl(api_.ncclCommInitRankConfig(&channel.comm, channel.size, channel.id, channel.me, &config), "ncclCommInitRankConfig");
      *moved = true;
    }
    if (channel.size > 1 && !channel.id_work.done()) context_->queue->poll();  // the peers' way to it
    if (!settled(channel)) return false;
    return channel.ready = *moved = true;
  }

  // Bytes of one part in a segment; the same on all ranks.
  static int64_t segment_bytes(const Op& op) {
    const int64_t share = kStaging / std::max(op.group->size() - 1, 1);
    return std::max<int64_t>(share, 1 << 20) / 256 * 256;
  }
  static int64_t own_bytes(const Op& op) { return op.out_count * dtype_bytes(op.dtype); }
  // Of this rank's part in the current segment.
  static int64_t join_bytes(Op& op) { return std::clamp<int64_t>(own_bytes(op) - state(op).at, 0, segment_bytes(op)); }
  // Distance between staged parts, aligned for every dtype.
  static int64_t stride(const Op& op) { return (std::min(own_bytes(op), segment_bytes(op)) + 255) / 256 * 256; }

  // False: the step is over. Every member has as many segments as the largest part needs.
  static bool next_segment(Op& op) {
    const Step& step = op.steps[op.step];
    int64_t& at = state(op).at;
    int64_t largest = own_bytes(op);
    for (const Piece& piece : step.pieces) largest = std::max(largest, piece.send_bytes);
    at += segment_bytes(op);
    if (step.joins && at < largest) return true;
    at = 0;
    return false;
  }

  // Work on the stream that was launched before may still use the old staging; what comes uses the new one.
  void need_staging(Channel& channel, int64_t bytes) {
    if (channel.staging_bytes >= bytes) return;
    int64_t size = std::max<int64_t>(channel.staging_bytes, 4096);
    while (size < bytes) size *= 2;
    void* memory = nullptr;
    check_cuda(api_.cudaMalloc(&memory, static_cast<size_t>(size)), "cudaMalloc for the parts of a reduction");
    if (channel.staging) channel.outgrown.push_back(channel.staging);
    channel.staging = static_cast<std::byte*>(memory);
    channel.staging_bytes = size;
  }

  // What this step, or segment of it, sends and receives. Messages without content are none here, but for a barrier's.
  std::vector<Message> messages(Op& op) {
    const Group& group = *op.group;
    const Step& step = op.steps[op.step];
    NcclState& mine = state(op);
    Channel& channel = *mine.channel;
    const bool barrier = op.kind == OpKind::kBarrier;
    const int n = group.size();
    if (barrier) need_staging(channel, 2 * n);
    if (step.joins && n > 1) need_staging(channel, stride(op) * (n - 1));
    std::vector<Message> out;
    for (int i = 1; i < n; ++i) {
      const int from = (group.me + n - i) % n, to = (group.me + i) % n;
      const Piece& in = step.pieces[static_cast<size_t>(from)];
      const Piece& gone = step.pieces[static_cast<size_t>(to)];
      const auto number = [&](int member) { return op.peer < 0 ? member : 1 - channel.me; };
      if (barrier) {
        out.push_back({number(to), channel.staging + n + to, nullptr, 1});
        out.push_back({number(from), nullptr, channel.staging + from, 1});
      } else if (step.joins) {
        const int64_t bytes = std::clamp<int64_t>(gone.send_bytes - mine.at, 0, segment_bytes(op));
        const int place = from < group.me ? from : from - 1;
        if (bytes > 0) out.push_back({number(to), gone.send + mine.at, nullptr, bytes});
        if (join_bytes(op) > 0) out.push_back({number(from), nullptr, channel.staging + stride(op) * place, join_bytes(op)});
      } else {
        if (gone.send_bytes > 0) out.push_back({number(to), gone.send, nullptr, gone.send_bytes});
        if (in.recv_bytes > 0) out.push_back({number(from), nullptr, in.recv, in.recv_bytes});
      }
    }
    return out;
  }

  void give_messages(Op& op) {
    const Channel& channel = *state(op).channel;
    const std::vector<Message> all = messages(op);
    if (all.empty()) return;
    check_nccl(api_.ncclGroupStart(), "ncclGroupStart");
    for (const Message& m : all) {
      const auto bytes = static_cast<size_t>(m.bytes);
      if (m.send) {
        check_nccl(api_.ncclSend(m.send, bytes, ncclUint8, m.peer, channel.comm, channel.stream), "ncclSend");
      } else {
        check_nccl(api_.ncclRecv(m.recv, bytes, ncclUint8, m.peer, channel.comm, channel.stream), "ncclRecv");
      }
    }
    check_nccl(api_.ncclGroupEnd(), "ncclGroupEnd");
  }

  // Behind the messages: joins what came, or copies what the rank has for itself.
  void keep_own(Op& op) {
    const Group& group = *op.group;
    const Step& step = op.steps[op.step];
    const Piece& own = step.pieces[static_cast<size_t>(group.me)];
    const NcclState& mine = state(op);
    const Channel& channel = *mine.channel;
    if (step.joins) {
      JoinArgs args{};
      args.own = reinterpret_cast<const unsigned char*>(own.send + mine.at);
      args.staged = reinterpret_cast<const unsigned char*>(channel.staging);
      args.out = reinterpret_cast<unsigned char*>(op.out + mine.at);
      args.stride = stride(op);
      args.count = join_bytes(op) / dtype_bytes(op.dtype);
      args.ranks = group.size();
      args.me = group.me;
      args.dtype = static_cast<int>(op.dtype);
      args.reduce = static_cast<int>(op.reduce);
      launch_join(args, device_, channel.stream);
    } else if (own.recv != own.send && own.recv_bytes > 0) {
      check_cuda(api_.cudaMemcpyAsync(own.recv, own.send, static_cast<size_t>(own.recv_bytes), cudaMemcpyDeviceToDevice, channel.stream),
                 "cudaMemcpyAsync");
    }
  }

  bool over(Op& op) {
    NcclState& mine = state(op);
    const cudaError_t code = api_.cudaEventQuery(mine.over.event);
    if (code == cudaSuccess) return true;
    if (code != cudaErrorNotReady) check_cuda(code, "an operation on the GPU");
    api_.cudaGetLastError();  // libtorch would report it as its own
    settled(*mine.channel);   // throws where NCCL has lost a peer
    return false;
  }

  // Kernels of the communicator end, whether their peers came or not; after that nothing on the stream touches buffers. Throws nothing.
  void abort(Channel& channel) const noexcept {
    if (channel.aborted) return;
    channel.aborted = true;
    api_.cudaSetDevice(device_);
    if (channel.comm) api_.ncclCommAbort(channel.comm);
    channel.comm = nullptr;
    if (channel.stream) api_.cudaStreamSynchronize(channel.stream);
  }

  void release(Channel& channel) const noexcept {
    for (std::byte* memory : channel.outgrown) api_.cudaFree(memory);
    if (channel.staging) api_.cudaFree(channel.staging);
    if (channel.stream) api_.cudaStreamDestroy(channel.stream);
    channel.outgrown.clear();
    channel.staging = nullptr;
    channel.stream = nullptr;
  }

  RankContext* context_;
  const int device_;
  const cudaStream_t compute_;
  const GpuApi& api_;
  std::map<std::string, int> made_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

}  // namespace

std::unique_ptr<CommEngine> make_nccl_engine(RankContext* context, const DeviceOptions& options) {
  return std::make_unique<NcclEngine>(context, options);
}

}  // namespace weft

#else

namespace weft {

std::unique_ptr<CommEngine> make_nccl_engine(RankContext*, const DeviceOptions&) {
  throw SystemError("this build has no NCCL, which moves device memory between ranks: configure with -DWEFT_NCCL=ON and build again");
}

}  // namespace weft

#endif
