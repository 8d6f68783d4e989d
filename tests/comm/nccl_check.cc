// Device memory between ranks (weft/comm/nccl_engine.h): every operation on GPUs against the same operation on host copies, bit for bit.
// Ranks are threads, one a GPU (at most 8), or the processes of mpirun. Exit code 0: all of it holds; 1: something does not; 77: no GPU
// is here, and only what the CPU can tell was checked: that the libraries load, have all functions, and compile the sums.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/threads.h"
#include "weft/comm/comm_test_cases.h"
#include "weft/comm/device_join.h"
#include "weft/comm/launch.h"

#include "weft/comm/nccl_api.h"

namespace weft {
namespace {

using comm_cases::Bytes;
using comm_cases::Counts;

constexpr int kNoGpu = 77;
const std::vector<ReduceOp> kReductions = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax};

[[noreturn]] void wrong(const std::string& what) { throw std::runtime_error("wrong: " + what); }

// Device memory with a copy of `content`; all traffic on one stream.
class OnGpu {
 public:
  OnGpu(const Bytes& content, cudaStream_t stream) : size_(content.size()), stream_(stream) {
    check_cuda(gpu_api().cudaMalloc(&memory_, std::max<size_t>(size_, 1)), "cudaMalloc");
    check_cuda(gpu_api().cudaMemcpyAsync(memory_, content.data(), size_, cudaMemcpyHostToDevice, stream), "upload");
  }
  OnGpu(OnGpu&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)), size_(other.size_), stream_(other.stream_) {}
  ~OnGpu() { gpu_api().cudaFree(memory_); }
  std::byte* data() const { return static_cast<std::byte*>(memory_); }
  Bytes content() const {
    Bytes out(size_);
    check_cuda(gpu_api().cudaMemcpyAsync(out.data(), memory_, size_, cudaMemcpyDeviceToHost, stream_), "download");
    check_cuda(gpu_api().cudaStreamSynchronize(stream_), "download");
    return out;
  }

 private:
  void* memory_ = nullptr;
  size_t size_;
  cudaStream_t stream_;
};

// One rank's view of a group on both sides.
struct Pair {
  Communicator host, device;
  cudaStream_t stream;
  int64_t results = 0;

  // call(comm, buffers, purpose) returns a Work. The buffers' contents after it are compared.
  template <class Call>
  void compare(const std::string& name, std::vector<Bytes> buffers, const Call& call) {
    std::vector<OnGpu> there;
    std::vector<std::byte*> here, pointers;
    for (Bytes& b : buffers) there.emplace_back(b, stream);
    for (Bytes& b : buffers) here.push_back(b.data());
    for (const OnGpu& b : there) pointers.push_back(b.data());
    Work on_device = call(device, pointers, "gpu");
    Work on_host = call(host, here, "cpu");
    on_host.wait();
    on_device.wait();
    for (size_t i = 0; i < buffers.size(); ++i)
      if (there[i].content() != buffers[i]) wrong(fmt::format("{}, rank {} of {}, buffer {}", name, host.rank(), host.size(), i));
    results += std::ssize(buffers);
  }
};

Bytes joined(const Counts& counts, DType dtype) {
  Bytes out;
  for (size_t r = 0; r < counts.size(); ++r) comm_cases::append(&out, comm_cases::values(dtype, static_cast<int>(r), counts[r]));
  return out;
}

void gathers(Pair& pair, DType dtype, const Counts& counts) {
  const auto me = static_cast<size_t>(pair.host.rank());
  const int root = pair.host.size() / 2;
  const int64_t all = comm_cases::total(counts);
  const Bytes mine = comm_cases::values(dtype, pair.host.rank(), counts[me]), blank = comm_cases::blank(all, dtype);
  int64_t offset = 0;
  for (size_t r = 0; r < me; ++r) offset += counts[r] * dtype_bytes(dtype);
  const std::string of = fmt::format(" of {}", dtype_name(dtype));
  pair.compare("all_gather" + of, {mine, blank},
               [&](Communicator& c, auto& b, const char* purpose) { return c.all_gather(b[0], b[1], counts, dtype, purpose); });
  Bytes placed = blank;
  std::copy(mine.begin(), mine.end(), placed.begin() + offset);
  pair.compare("all_gather in place" + of, {placed},
               [&](Communicator& c, auto& b, const char* purpose) { return c.all_gather(b[0] + offset, b[0], counts, dtype, purpose); });
  pair.compare("gather" + of, {mine, blank},
               [&](Communicator& c, auto& b, const char* purpose) { return c.gather(b[0], b[1], counts, dtype, root, purpose); });
  pair.compare("scatter" + of, {joined(counts, dtype), comm_cases::blank(counts[me], dtype)},
               [&](Communicator& c, auto& b, const char* purpose) { return c.scatter(b[0], b[1], counts, dtype, root, purpose); });
  const Bytes data = pair.host.rank() == root ? comm_cases::values(dtype, root, all) : blank;
  pair.compare("broadcast" + of, {data},
               [&](Communicator& c, auto& b, const char* purpose) { return c.broadcast(b[0], all, dtype, root, purpose); });
}

void reductions(Pair& pair, DType dtype, const Counts& counts, ReduceOp op) {
  const auto me = static_cast<size_t>(pair.host.rank());
  const int64_t all = comm_cases::total(counts);
  const Bytes in = comm_cases::values(dtype, pair.host.rank(), all);
  int64_t offset = 0;
  for (size_t r = 0; r < me; ++r) offset += counts[r] * dtype_bytes(dtype);
  const std::string of = fmt::format(", {} of {}, {} elements", to_string(op), dtype_name(dtype), all);
  pair.compare("reduce_scatter" + of, {in, comm_cases::blank(counts[me], dtype)},
               [&](Communicator& c, auto& b, const char* purpose) { return c.reduce_scatter(b[0], b[1], counts, dtype, op, purpose); });
  pair.compare("reduce_scatter in place" + of, {in},
               [&](Communicator& c, auto& b, const char* purpose) { return c.reduce_scatter(b[0], b[0] + offset, counts, dtype, op, purpose); });
  pair.compare("all_reduce" + of, {in, comm_cases::blank(all, dtype)},
               [&](Communicator& c, auto& b, const char* purpose) { return c.all_reduce(b[0], b[1], all, dtype, op, purpose); });
  pair.compare("all_reduce in place" + of, {in},
               [&](Communicator& c, auto& b, const char* purpose) { return c.all_reduce(b[0], b[0], all, dtype, op, purpose); });
}

void exchanges(Pair& pair, DType dtype, int pattern) {
  const int me = pair.host.rank(), n = pair.host.size();
  const auto amount = [&](int a, int b) -> int64_t { return pattern == 0 ? 4 : pattern == 1 ? 2 * a + b + 1 : pattern == 2 && (a + b) % 2 ? 300 * (a + 1) : 0; };
  Counts to, from;
  for (int r = 0; r < n; ++r) {
    to.push_back(amount(me, r));
    from.push_back(amount(r, me));
  }
  pair.compare("all_to_all", {comm_cases::values(dtype, me, comm_cases::total(to)), comm_cases::blank(comm_cases::total(from), dtype)},
               [&](Communicator& c, auto& b, const char* purpose) { return c.all_to_all(b[0], to, b[1], from, dtype, purpose); });
  const int64_t count = pattern == 3 ? 0 : 7 + 500 * pattern;
  if (n > 1) {  // around a ring: everyone receives before it sends, a collective between, and waits out of order
    const int next = (me + 1) % n, last = (me + n - 1) % n;
    pair.compare("send and recv", {comm_cases::values(dtype, me, count), comm_cases::values(dtype, me, count, 50), comm_cases::blank(count, dtype),
                                   comm_cases::blank(count, dtype)},
                 [&](Communicator& c, auto& b, const char* purpose) {
                   Work receive_a = c.recv(b[2], count, dtype, last, purpose), receive_b = c.recv(b[3], count, dtype, last, purpose);
                   Work meet = c.barrier(purpose);
                   Work send_a = c.send(b[0], count, dtype, next, purpose), send_b = c.send(b[1], count, dtype, next, purpose);
                   receive_b.wait();
                   send_b.wait();
                   meet.wait();
                   send_a.wait();
                   return receive_a;
                 });
  }
  pair.device.barrier("gpu").wait();
  pair.host.barrier("cpu").wait();
}

void everything(Pair& pair) {
  const auto patterns = comm_cases::count_patterns(pair.host.size());
  for (const DType dtype : comm_cases::kDTypes) {
    for (int p = 0; p < 4; ++p) {
      gathers(pair, dtype, patterns[static_cast<size_t>(p)]);
      exchanges(pair, dtype, p);
      for (const ReduceOp op : kReductions)
        if (comm_cases::reducible(dtype, op)) reductions(pair, dtype, patterns[static_cast<size_t>(p)], op);
    }
  }
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t count : {9001, 100000}) reductions(pair, dtype, Counts(static_cast<size_t>(pair.host.size()), count), ReduceOp::kSum);
}

// Several operations open on groups that overlap, their inputs still being written on the compute stream.
void overlap(Pair& world, Pair& turned) {
  constexpr int64_t kCount = 8 << 20, kRepeats = 50;
  const int n = world.host.size();
  const Bytes ones = [] {
    Bytes out = comm_cases::blank(kCount, DType::kF32);
    for (int64_t i = 0; i < kCount; ++i) comm_cases::put(&out, i, 1.0f);
    return out;
  }();
  const Bytes blank = comm_cases::blank(kCount, DType::kF32);
  const OnGpu source(ones, world.stream), a(blank, world.stream), b(blank, world.stream), c(blank, world.stream);
  for (int i = 0; i < kRepeats; ++i)
    check_cuda(gpu_api().cudaMemcpyAsync(a.data(), source.data(), ones.size(), cudaMemcpyDeviceToDevice, world.stream), "copy");
  Work first = world.device.all_reduce(a.data(), b.data(), kCount, DType::kF32, ReduceOp::kSum, "gpu");
  Work second = turned.device.all_reduce(a.data(), c.data(), kCount, DType::kF32, ReduceOp::kMax, "gpu");
  while (!first.done() || !second.done()) {
  }
  const Bytes sums = b.content(), maxima = c.content();
  for (int64_t i = 0; i < kCount; ++i)
    if (comm_cases::get<float>(sums, i) != static_cast<float>(n) || comm_cases::get<float>(maxima, i) != 1.0f) wrong("operations beside a computation");
}

void compare_bytes(const CommStats& stats) {
  for (const CommStatsRow& row : stats.rows())
    if (row.purpose == "gpu" && !(row.bytes == stats.of(row.kind, row.axis, "cpu")))
      wrong(fmt::format("bytes of {} on '{}': {} sent on the GPU, {} on the CPU", op_kind_name(row.kind), row.axis, row.bytes.sent,
                        stats.of(row.kind, row.axis, "cpu").sent));
}

void refuses(Communicator& device) {
  float x = 1;
  for (const bool buffer : {false, true}) {
    try {
      if (buffer) device.shared_buffer(16);
      else device.all_reduce(&x, &x, 1, DType::kF32, ReduceOp::kSum).wait();
    } catch (const ValueError&) {
      continue;
    }
    wrong("host memory was taken");
  }
}

void run_rank(Communicator& world, int gpus) {
  const int device = world.rank() % gpus;
  check_cuda(gpu_api().cudaSetDevice(device), "cudaSetDevice");
  cudaStream_t stream = nullptr;
  check_cuda(gpu_api().cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  Communicator on_gpu = world.on_device({.device = device, .compute_stream = stream});
  Pair pair{world, on_gpu, stream};
  everything(pair);
  if (world.size() > 1) {  // more than one segment of a join, on one rank only
    Counts counts(static_cast<size_t>(world.size()), 100);
    counts[0] = 36 << 20;
    reductions(pair, DType::kF32, counts, ReduceOp::kSum);
  }
  compare_bytes(world.stats());
  std::vector<int> reversed;
  for (int r = world.size(); r-- > 0;) reversed.push_back(r);
  Pair turned{world.sub(reversed, "turned"), on_gpu.sub(reversed, "turned"), stream};
  for (const ReduceOp op : kReductions) reductions(turned, DType::kBF16, Counts(static_cast<size_t>(world.size()), 4000), op);
  compare_bytes(world.stats());
  if (world.rank() < 2 && world.size() > 2) {
    Pair two{world.sub(std::vector<int>{0, 1}, "two"), on_gpu.sub(std::vector<int>{0, 1}, "two"), stream};
    gathers(two, DType::kBF16, {3, 4});
    compare_bytes(world.stats());
  }
  overlap(pair, turned);  // not counted above: has no twin on the CPU
  refuses(on_gpu);
  if (world.rank() == 0) std::printf("%d ranks: %lld results have the bits of the CPU's\n", world.size(), static_cast<long long>(pair.results + turned.results));
}

// The kernel alone, with as many parts as there may be ranks: needs one GPU.
void join_on_gpu() {
  set_denormals_flushed();
  constexpr int64_t kCount = 5000;
  check_cuda(gpu_api().cudaSetDevice(0), "cudaSetDevice");
  for (const int n : {1, 2, 3, 4, 5, 6, 7, 8, 16, 64}) {
    for (const DType dtype : comm_cases::kDTypes) {
      for (const ReduceOp op : kReductions) {
        if (!comm_cases::reducible(dtype, op)) continue;
        const int me = n / 2;
        std::vector<Bytes> parts;
        std::vector<const std::byte*> places;
        Bytes staged, wanted = comm_cases::blank(kCount, dtype);
        for (int r = 0; r < n; ++r) parts.push_back(comm_cases::values(dtype, r, kCount));
        for (int r = 0; r < n; ++r) places.push_back(parts[static_cast<size_t>(r)].data());
        for (int r = 0; r < n; ++r)
          if (r != me) comm_cases::append(&staged, parts[static_cast<size_t>(r)]);
        reduce_parts(places, wanted.data(), kCount, dtype, op);
        const OnGpu own(parts[static_cast<size_t>(me)], nullptr), others(staged, nullptr);
        auto* place = reinterpret_cast<unsigned char*>(own.data());
        launch_join({place, reinterpret_cast<const unsigned char*>(others.data()), place, kCount * dtype_bytes(dtype), kCount, n, me,
                     static_cast<int>(dtype), static_cast<int>(op)}, 0, nullptr);
        if (own.content() != wanted) wrong(fmt::format("{} of {} over {} parts on the GPU", to_string(op), dtype_name(dtype), n));
      }
    }
  }
  std::printf("sums on the GPU have the bits of reduce.h\n");
}

int run() {
  std::printf("%s\n", gpu_versions().c_str());
  for (const char* architecture : {"sm_80", "sm_90", "sm_100"})
    std::printf("NVRTC compiles the sums for %s: %zu bytes\n", architecture, compile_join(architecture).size());
  const int gpus = gpu_count();
  const LaunchWorld launched = launch_world();
  if (gpus == 0) {
    try {
      run_ranks(1, {}, [](Communicator& world) { world.on_device({}); });
      wrong("on_device without a GPU");
    } catch (const SystemError& error) {
      std::printf("on_device says: %s\n", error.what());
    }
    std::printf("NO GPU HERE: no operation on device memory was run\n");
    return kNoGpu;
  }
  join_on_gpu();
  const int ranks = launched.mpi && launched.size > 0 ? launched.size : std::min(gpus, 8);
  if (ranks == 1) std::printf("ONE GPU: a group of one rank only; nothing was exchanged between GPUs\n");
  run_ranks(ranks, {}, [&](Communicator& world) { run_rank(world, gpus); });
  return 0;
}

}  // namespace
}  // namespace weft

int main() {
  try {
    return weft::run();
  } catch (const std::exception& error) {
    if (!weft::error_was_told(error.what())) weft::log_error("{}", error.what());
    return 1;
  }
}
