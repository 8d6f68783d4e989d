// Refit of a random 290 M-parameter Qwen3-MoE (8 layers, hidden 1024, 16 experts, vocabulary 32768) from trainer shards to
// rollout shards, in one run with what moves the same bytes otherwise: memcpy on the same threads or, under mpirun,
// MPI_Alltoallv. Prints JSON, one pair of meshes a line; figures are medians, ratios of medians.
//
// refit_bench [--repeat N] [--actor fsdp=4 --rollout dp=2,tp=2] [--dtype float32|bfloat16] [--watermark_mb N]

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#ifdef WEFT_BENCH_MPI
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#endif

#include "weft/base/arena.h"
#include "weft/base/clock.h"
#include "weft/comm/launch.h"
#include "weft/train/rollout_role.h"

namespace weft {
namespace {

ModelConfig config() {
  ModelConfig c;
  c.family = "qwen3_moe";
  c.vocab_size = 32768, c.hidden_size = 1024, c.intermediate_size = 2048;
  c.num_layers = 8, c.num_heads = 16, c.num_kv_heads = 4, c.head_dim = 64;
  c.max_position_embeddings = 4096;
  c.qk_norm = true;
  c.moe_layers.assign(8, true);
  c.moe.num_experts = 16, c.moe.top_k = 4, c.moe.intermediate_size = 512;
  for (int i = 0; i < 32; ++i) c.inv_freq.push_back(static_cast<float>(std::pow(10000.0, -i / 32.0)));
  return c;
}

// Memory of a size where weights lie (base/arena.h), touched: page faults are nobody's.
std::byte* memory(Arena& arena, int64_t bytes) {
  void* const out = arena.allocate(bytes);
  std::memset(out, 1, static_cast<size_t>(bytes));
  return static_cast<std::byte*>(out);
}

std::vector<TensorPart> parts_of(const std::vector<RefitTensor>& tensors, int64_t rank, bool sources, Arena& arena) {
  std::vector<TensorPart> out;
  for (const RefitTensor& t : tensors) {
    const DType dtype = sources ? DType::kF32 : t.dtype;
    TensorPart part{nullptr, dtype, {}};
    for (const HolderSet& set : sources ? t.from : t.to)
      if (std::binary_search(set.ranks.begin(), set.ranks.end(), rank)) {
        part.shape.assign(t.shape.size(), 0);
        for (const LocalBox& b : set.boxes)
          for (size_t d = 0; d < part.shape.size(); ++d)
            part.shape[d] = std::max(part.shape[d], b.local_offset[d] + b.box.size[d]);
        int64_t bytes = dtype_bytes(dtype);
        for (int64_t s : part.shape) bytes *= s;
        part.data = memory(arena, bytes);
      }
    out.push_back(part);
  }
  return out;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

void bench(const Communicator& world, const std::string& actor, const std::string& rollout, at::ScalarType dtype, int repeat,
           int64_t watermark) {
  const int64_t n = world.size(), me = world.rank();
  RolePlaces places;
  places.world = static_cast<int>(n);
  std::vector<int> ranks;
  for (int r = 0; r < n; ++r) ranks.push_back(r);
  places.actor = {parse_parallel_dims(actor, n, {"oe"}), ranks};
  places.rollout = {parse_rollout_dims(rollout, n, {"oe"}), ranks};
  const std::vector<RefitTensor> tensors = refit_tensors(config(), dtype, places, false, {});
  Refit plain(tensors, world, {watermark, false}), verified(tensors, world, {watermark, true});
  Arena arena("bench");
  const std::vector<TensorPart> from = parts_of(tensors, me, true, arena), to = parts_of(tensors, me, false, arena);
  // What arrives and what the rank makes of its own: bytes by source.
  std::vector<int64_t> in(static_cast<size_t>(n)), out(static_cast<size_t>(n));
  for (size_t i = 0; i < tensors.size(); ++i)
    for (const Transfer& t : plain.plan().transfers[i]) {
      const int64_t bytes = t.box.numel() * dtype_bytes(tensors[i].dtype);
      if (t.destination == me) in[static_cast<size_t>(t.source)] += bytes;
      if (t.source == me) out[static_cast<size_t>(t.destination)] += bytes;
    }
  int64_t received = 0, sent = 0;
  for (int64_t b : in) received += b;
  for (int64_t b : out) sent += b;
  std::byte *const here = memory(arena, std::max(received, sent)), *const there = memory(arena, received);
  const auto timed = [&](const auto& fn) {
    world.barrier().wait();
    const double start = real_clock().now();
    fn();
    world.barrier().wait();
    return real_clock().now() - start;
  };
  std::vector<double> copies, unverified, with_hashes;
  int64_t peak = 0;
  for (int i = 0; i <= repeat; ++i) {
    const double copy = timed([&] {
#ifdef WEFT_BENCH_MPI
      if (!world.shares_memory()) {  // by piece: MPI counts in int
        constexpr int64_t kPiece = 64 << 20;
        int64_t rounds = 0;
        for (int64_t r = 0; r < n; ++r)
          rounds = std::max(
              {rounds, (in[static_cast<size_t>(r)] + kPiece - 1) / kPiece, (out[static_cast<size_t>(r)] + kPiece - 1) / kPiece});
        int64_t most = rounds;
        world.all_reduce(&rounds, &most, 1, DType::kI64, ReduceOp::kMax).wait();
        for (int64_t round = 0; round < most; ++round) {
          std::vector<int> sends, recvs, send_at, recv_at;
          int at_send = 0, at_recv = 0;
          for (size_t r = 0; r < static_cast<size_t>(n); ++r) {
            const auto part = [&](int64_t all) { return static_cast<int>(std::clamp<int64_t>(all - round * kPiece, 0, kPiece)); };
            sends.push_back(part(out[r])), recvs.push_back(part(in[r]));
            send_at.push_back(at_send), recv_at.push_back(at_recv);
            at_send += sends.back(), at_recv += recvs.back();
          }
          MPI_Alltoallv(here, sends.data(), send_at.data(), MPI_BYTE, there, recvs.data(), recv_at.data(), MPI_BYTE,
                        MPI_COMM_WORLD);
        }
        return;
      }
#endif
      std::memcpy(there, here, static_cast<size_t>(received));
    });
    RefitReport report;
    const double bare = timed([&] { report = plain.run(from, to); });
    const double checked = timed([&] { verified.run(from, to); });
    peak = std::max(peak, report.peak_in_flight);
    if (i == 0) continue;  // warm
    copies.push_back(copy), unverified.push_back(bare), with_hashes.push_back(checked);
  }
  if (me == 0)
    std::printf(
        "{\"actor\": \"%s\", \"rollout\": \"%s\", \"dtype\": \"%s\", \"against\": \"%s\", \"gb_to_rank_0\": %.3f, \"buckets\": "
        "%zu, "
        "\"peak_in_flight_mb\": %.1f, \"copy_s\": %.4f, \"refit_s\": %.4f, \"refit_verified_s\": %.4f, \"ratio\": %.3f, "
        "\"ratio_verified\": %.3f}\n",
        actor.c_str(), rollout.c_str(), dtype == at::kFloat ? "float32" : "bfloat16",
        world.shares_memory() ? "memcpy" : "MPI_Alltoallv", static_cast<double>(received) / 1e9,
        static_cast<size_t>(plain.num_buckets()), static_cast<double>(peak) / 1e6, median(copies), median(unverified),
        median(with_hashes), median(unverified) / median(copies), median(with_hashes) / median(copies));
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  std::map<std::string, std::string> args;
  for (int i = 1; i + 1 < argc; i += 2) args[argv[i]] = argv[i + 1];
  const auto get = [&](const char* name, const char* otherwise) {
    return args.count(name) ? args[name] : std::string(otherwise);
  };
  const int repeat = std::stoi(get("--repeat", "5"));
  const at::ScalarType dtype = get("--dtype", "float32") == "float32" ? at::kFloat : at::kBFloat16;
  const int64_t watermark = std::stoll(get("--watermark_mb", "64")) * 1'000'000;
  std::vector<std::pair<std::string, std::string>> pairs = {{"fsdp=4", "dp=2,tp=2"}, {"fsdp=4,ep=4", "tp=4"}};
  if (args.count("--actor")) pairs = {{args["--actor"], get("--rollout", "dp=-1")}};
  CommOptions options;
  options.threads_per_rank = 1;
  const ParallelDims dims = parse_parallel_dims(pairs[0].first, 0, {"oe"});
  run_ranks(static_cast<int>(dims.world()), options, [&](Communicator& world) {
    for (const auto& [actor, rollout] : pairs) bench(world, actor, rollout, dtype, repeat, watermark);
  });
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::run(argc, argv); }
