#include "weft/comm/launch.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/this_rank.h"
#include "weft/base/threads.h"
#include "weft/comm/mpi_engine.h"
#include "weft/comm/rank_context.h"
#include "weft/comm/thread_engine.h"
#include "weft/comm/watchdog.h"

namespace weft {
namespace {

// How many ranks a launcher's variable says; 0 where it is not set.
int ranks_in(const char* variable) {
  const char* text = std::getenv(variable);
  int n = 0;
  if (text) std::from_chars(text, text + std::string_view(text).size(), n);
  return n;
}

bool in_background(CommProgress progress, int ranks_here) {
  if (ranks_here == 1 && progress == CommProgress::kAuto) return false;
  return progress == CommProgress::kBackground || (progress == CommProgress::kAuto && available_cores() >= 2 * ranks_here);
}

void set_threads(const CommOptions& options, int ranks_here) {
  if (options.threads_per_rank > 0) {
    set_num_threads(options.threads_per_rank);
  } else if (ranks_here > 1) {
    set_num_threads(std::max(1, available_cores() / ranks_here));
  }
}

std::string kept_ring_path(const CommOptions& options, int rank) { return fmt::format("{}/weft-rank-{}.ring", options.ring_dir, rank); }
const char* ring_folder() { return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"; }

// The ring of a thread rank; its file is gone at once unless the user wants to keep it.
std::unique_ptr<OpRing> local_ring(const CommOptions& options, int rank) {
  if (!options.ring_dir.empty()) return OpRing::create(kept_ring_path(options, rank));
  static std::atomic<int> count{0};
  const std::string path = fmt::format("{}/weft-{}-{}.ring", ring_folder(), ::getpid(), count.fetch_add(1));
  auto ring = OpRing::create(path);
  ::unlink(path.c_str());
  return ring;
}

WatchdogOptions watchdog_options(const CommOptions& options) { return {options.heartbeat_s, options.timeout_s, options.stall_s}; }

std::string error_text(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

int error_code(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.exit_code();
  } catch (...) {
    return kExitFailed;
  }
}

// Runs fn on one rank in the calling thread. Returns what it threw; tells the peers. `culprit`: it threw first.
std::exception_ptr run_rank(RankContext* context, const std::function<void(Communicator&)>& fn, bool* culprit) {
  set_denormals_flushed();
  try {
    context->ring->set_status(RankStatus::kRunning);
    std::vector<int> all;
    for (int r = 0; r < context->size; ++r) all.push_back(r);
    Communicator world(context, make_group(context, all, "world"));
    fn(world);
    context->queue->drain();
    context->ring->set_status(RankStatus::kReturned);
    return nullptr;
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    const bool first = context->failure->fail(fmt::format("rank {} threw: {}", context->rank, error_text(error)), error_code(error));
    context->ring->set_status(RankStatus::kFailed, context->failure->reason());  // peers learn the reason from it
    *culprit = first;
    return first ? error : std::make_exception_ptr(PeerLostError(context->failure->reason()));
  }
}

void run_one_rank(const CommOptions& options, const std::function<void(Communicator&)>& fn) {
  JobFailure failure;
  ThreadWorld world(1);
  RankContext context;
  context.failure = &failure;
  context.ring = local_ring(options, 0);
  context.engine = make_thread_engine(&world);
  context.queue = std::make_unique<OpQueue>(context.engine.get(), &failure, context.ring.get(),
                                            options.progress == CommProgress::kBackground, true);
  world.set_queue(0, context.queue.get());
  set_threads(options, 1);
  bool culprit = false;
  if (const std::exception_ptr error = run_rank(&context, fn, &culprit)) std::rethrow_exception(error);
}

void run_threads(int n, const CommOptions& options, const std::function<void(Communicator&)>& fn) {
  JobFailure failure;
  ThreadWorld world(n);
  std::vector<std::unique_ptr<RankContext>> ranks;
  std::vector<RankContext*> local;
  std::vector<OpRing*> rings;
  for (int r = 0; r < n; ++r) {
    auto context = std::make_unique<RankContext>();
    context->rank = r;
    context->size = n;
    context->failure = &failure;
    context->ring = local_ring(options, r);
    context->engine = make_thread_engine(&world);
    context->queue = std::make_unique<OpQueue>(context->engine.get(), &failure, context->ring.get(),
                                               in_background(options.progress, n), available_cores() >= n);
    world.set_queue(r, context->queue.get());
    local.push_back(context.get());
    rings.push_back(context->ring.get());
    ranks.push_back(std::move(context));
  }
  Watchdog watchdog(watchdog_options(options), rings, local, &failure);
  std::exception_ptr chosen;  // what the rank to blame threw, where one did
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      set_this_rank(r);
      set_threads(options, n);
      bool culprit = false;
      const std::exception_ptr error = run_rank(local[static_cast<size_t>(r)], fn, &culprit);
      if (culprit) chosen = error;  // one rank at most
    });
  }
  for (std::thread& thread : threads) thread.join();  // the watchdog ends the process where one does not come back
  for (RankContext* rank : local) rank->queue->stop();
  if (!failure.failed()) return;
  watchdog.announce();
  if (chosen) std::rethrow_exception(chosen);
  throw PeerLostError(failure.reason());
}

// This process's rank of a job of processes.
void run_process(int n, const CommOptions& options, const std::function<void(Communicator&)>& fn) {
  const MpiWorld mpi = start_mpi();
  set_process_rank(mpi.rank);
  if (mpi.size != n) throw UsageError(fmt::format("the mesh has {} ranks, and MPI started {}: make them equal", n, mpi.size));
  JobFailure failure;
  RankContext context;
  context.rank = mpi.rank;
  context.size = n;
  context.failure = &failure;
  // Rings have a name that all ranks know, until all have opened them.
  const std::string job = fmt::format("{:x}", static_cast<uint64_t>(mpi_broadcast(steady_ns() ^ int64_t{::getpid()} << 40)));
  const auto ring_path = [&](int rank) {
    return options.ring_dir.empty() ? fmt::format("{}/weft-{}-{}.ring", ring_folder(), job, rank) : kept_ring_path(options, rank);
  };
  context.ring = OpRing::create(ring_path(mpi.rank));
  mpi_barrier();
  std::vector<std::unique_ptr<OpRing>> peers(static_cast<size_t>(n));
  std::vector<OpRing*> rings(static_cast<size_t>(n));
  int here = 1;
  for (int r = 0; r < n; ++r) {
    auto& peer = peers[static_cast<size_t>(r)];
    if (r != mpi.rank) peer = OpRing::open(ring_path(r));
    here += peer != nullptr;
    rings[static_cast<size_t>(r)] = r == mpi.rank ? context.ring.get() : peer.get();
  }
  mpi_barrier();
  if (options.ring_dir.empty()) ::unlink(ring_path(mpi.rank).c_str());
  context.engine = make_mpi_engine();
  context.queue = std::make_unique<OpQueue>(context.engine.get(), &failure, context.ring.get(),
                                            in_background(options.progress, here), available_cores() >= here);
  set_threads(options, here);
  Watchdog watchdog(watchdog_options(options), rings, {&context}, &failure);
  bool culprit = false;
  std::exception_ptr error = run_rank(&context, fn, &culprit);
  if (!error) mpi_leave(failure);
  if (!failure.failed()) return;
  abandon_mpi();
  watchdog.announce();
  if (!error) error = std::make_exception_ptr(PeerLostError(failure.reason()));
  std::rethrow_exception(error);
}

}  // namespace

LaunchWorld launch_world() {
  // SLURM_STEP_NUM_TASKS is srun's; SLURM_NTASKS stands in a batch script's environment, too.
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const int n = ranks_in(variable); n > 0) return {true, n, variable};
  if (std::getenv("PMIX_RANK")) return {true, 0, "PMIX_RANK"};  // the size is known after the start of MPI
  return {};
}

void run_ranks(int n, const CommOptions& options, const std::function<void(Communicator&)>& fn) {
  if (n < 1) throw ValueError(fmt::format("run_ranks: {} ranks", n));
  const LaunchWorld world = launch_world();
  if (world.mpi && world.size > 0 && world.size != n)
    throw UsageError(fmt::format("the mesh has {} ranks, and the launcher started {} ({}): make them equal", n, world.size, world.from));
  if (world.mpi) {
    run_process(n, options, fn);
  } else if (n == 1) {
    run_one_rank(options, fn);
  } else {
    run_threads(n, options, fn);
  }
}

}  // namespace weft
