// comm_rank CASE RANKS [inline|background] [HEARTBEAT TIMEOUT [DIR]]: one case of communication, with ranks as threads or, under
// mpirun, as processes. Prints what the test compares; the exit code is the program's own (weft/base/error.h).
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <string>

#include "weft/base/clock.h"
#include "weft/base/log.h"
#include "weft/base/signals.h"
#include "weft/comm/comm_test_cases.h"
#include "weft/comm/launch.h"

namespace weft {
namespace {

using comm_cases::Checker;
using comm_cases::Counts;

constexpr int kCulprit = 1;

void compute_for(double seconds) {
  static std::atomic<int64_t> sink{0};
  for (const double end = real_clock().now() + seconds; real_clock().now() < end;) sink.fetch_add(1);
}

void gather_some(Communicator& comm) {
  std::vector<int32_t> all(static_cast<size_t>(comm.size()));
  const int32_t mine = comm.rank();
  comm.all_gather(&mine, all.data(), Counts(all.size(), 1), DType::kI32, "before").wait();
}

void run_case(const std::string& name, Communicator& world) {
  const bool culprit = world.rank() == kCulprit;
  float x = 1, y[16] = {};
  if (name == "hash") {
    Checker checker;
    comm_cases::everything(world, &checker);
    std::vector<int> reversed;
    for (int r = world.size(); r-- > 0;) reversed.push_back(r);
    Communicator turned = world.sub(reversed, "turned");
    comm_cases::large_reductions(turned, &checker);
    if (world.rank() < 2 && world.size() > 2) {
      Communicator pair = world.sub(std::vector<int>{0, 1}, "pair");
      comm_cases::gathers(pair, DType::kBF16, {3, 4}, &checker);
    }
    const uint64_t hash = comm_cases::common_hash(world, checker);
    if (world.rank() == 0)
      std::printf("hash %016llx of %lld results\n", static_cast<unsigned long long>(hash), static_cast<long long>(checker.results()));
    return;
  }
  if (name == "overlap") {  // several operations open on several groups while the rank computes
    Communicator all = world.sub(std::vector<int>{1, 0}, "turned");
    std::vector<float> a(3 << 20, 1.0f), b(3 << 20), c(1 << 20, 2.0f), d(1 << 20);
    Work first = world.all_reduce(a.data(), b.data(), std::ssize(a), DType::kF32, ReduceOp::kSum);
    Work second = all.all_reduce(c.data(), d.data(), std::ssize(c), DType::kF32, ReduceOp::kSum);
    while (!first.done() || !second.done()) compute_for(0.001);
    std::printf("rank %d: %g %g\n", world.rank(), static_cast<double>(b[77] + b.back()), static_cast<double>(d[1] + d.back()));
    return;
  }
  gather_some(world);
  if (name == "throw") {
    if (culprit) throw FileError("weights.bin", "byte 12", "is torn");
  } else if (name == "return") {
    if (culprit) return;
  } else if (name == "loop") {
    if (culprit) for (;;) compute_for(1);
  } else if (name == "kind") {
    if (culprit) world.reduce_scatter(y, y, Counts(static_cast<size_t>(world.size()), 1), DType::kF32, ReduceOp::kSum).wait();
  } else if (name == "size") {
    if (culprit) world.all_gather(&x, y, Counts(static_cast<size_t>(world.size()), 2), DType::kF32).wait();
  } else if (name == "group") {
    Communicator other = world.sub(world.size() == 2 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2}, "other");
    if (culprit) other.barrier().wait();
  } else if (name == "kill") {
    if (culprit) ::raise(SIGKILL);
  } else if (name == "stop") {
    if (culprit) ::raise(SIGSTOP);
  } else if (name == "compute") {
    if (culprit) compute_for(2.2);
  } else {
    throw UsageError("no such case: " + name);
  }
  world.all_gather(&x, y, Counts(static_cast<size_t>(world.size()), 1), DType::kF32, "after").wait();
  std::printf("rank %d got through\n", world.rank());
}

int run(int argc, char** argv) {
  install_stop_signals();
  if (argc < 3) throw UsageError("comm_rank CASE RANKS [inline|background] [HEARTBEAT TIMEOUT]");
  CommOptions options;
  if (argc > 3) options.progress = std::string(argv[3]) == "inline" ? CommProgress::kInline : CommProgress::kBackground;
  if (argc > 5) {
    options.heartbeat_s = std::stod(argv[4]);
    options.timeout_s = std::stod(argv[5]);
  }
  if (argc > 6) {  // a directory for each rank: none sees a peer's ring, as between hosts
    options.ring_dir = fmt::format("{}/{}", argv[6], launch_world().rank);
    std::filesystem::create_directories(options.ring_dir);
  }
  run_ranks(std::stoi(argv[2]), options, [&](Communicator& world) { run_case(argv[1], world); });
  return kExitDone;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    return weft::run(argc, argv);
  } catch (const weft::Error& error) {
    if (!weft::error_was_told(error.what())) weft::log_error("{}", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    weft::log_error("{}", error.what());
    return weft::kExitFailed;
  }
}
