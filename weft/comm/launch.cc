#include "weft/comm/launch.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "weft/base/cores.h"
#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/this_rank.h"
#include "weft/base/threads.h"
#include "weft/comm/mpi_engine.h"
#include "weft/comm/rank_context.h"
#include "weft/comm/thread_engine.h"
#include "weft/comm/watchdog.h"

namespace weft {
namespace {

// What a rank may use of its host.
struct Share {
  int world = 1, here = 1;  // ranks, and those on this host
  int cores = 1;            // of this rank, at least 1
  bool alone = false;       // no other rank needs them
};
Share share_of_host(int world, int same_mask, int here) {
  const CoreLimits limits = core_limits();
  return {world, here, cores_of_rank(limits, same_mask, here),
          limits.mask >= same_mask && (limits.quota == 0 || limits.quota >= here)};
}

bool in_background(CommProgress progress, const Share& share) {
  if (share.world == 1 && progress == CommProgress::kAuto) return false;
  return progress == CommProgress::kBackground || (progress == CommProgress::kAuto && share.cores >= 2);
}

void set_threads(const CommOptions& options, const Share& share) {
  if (options.threads_per_rank > 0) {
    set_num_threads(options.threads_per_rank);
  } else if (share.here > 1) {
    set_num_threads(share.cores);
  }
}

std::string kept_ring_path(const CommOptions& options, int rank) {
  return fmt::format("{}/weft-rank-{}.ring", options.ring_dir, rank);
}
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
  } catch (const InternalError& e) {
    return fmt::format("internal error: {}. This is a bug of weft: please report it with the command that you ran", e.what());
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

// What became of a rank. `culprit`: it threw before anything else went wrong.
struct RankEnd {
  std::exception_ptr error;
  bool culprit = false;
};

// Runs fn on one rank in the calling thread; tells the peers when it throws.
RankEnd run_rank(RankContext* context, const std::function<void(Communicator&)>& fn) {
  set_denormals_flushed();
  try {
    context->ring->set_status(RankStatus::kRunning);
    std::vector<int> all;
    for (int r = 0; r < context->size; ++r) all.push_back(r);
    Communicator world(context, make_group(context, all, "world"));
    std::exception_ptr stopped;
    try {
      fn(world);
    } catch (const StoppedError&) {  // as agreed with the peers, who leave in the same way
      stopped = std::current_exception();
    }
    context->drain();
    context->ring->set_status(RankStatus::kReturned);
    if (context->device_engine) context->device_engine->leave();
    return {stopped};
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    const bool first =
        context->failure->fail(fmt::format("rank {} threw: {}", context->rank, error_text(error)), error_code(error));
    if (first && context->host_ring) claim_to_speak(context);                    // before anyone can learn of it
    context->ring->set_status(RankStatus::kFailed, context->failure->reason());  // peers learn the reason from it
    return {first ? error : std::make_exception_ptr(PeerLostError(context->failure->reason())), first};
  }
}

// The watchdog has told it.
[[noreturn]] void rethrow_told(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    set_error_told(e.what());
    throw;
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
  set_threads(options, {});
  if (const RankEnd end = run_rank(&context, fn); end.error) std::rethrow_exception(end.error);
}

void run_threads(int n, const CommOptions& options, const std::function<void(Communicator&)>& fn) {
  JobFailure failure;
  ThreadWorld world(n);
  std::vector<std::unique_ptr<RankContext>> ranks;
  std::vector<RankContext*> local;
  std::vector<OpRing*> rings;
  const Share share = share_of_host(n, n, n);
  for (int r = 0; r < n; ++r) {
    auto context = std::make_unique<RankContext>();
    context->rank = r;
    context->size = n;
    context->failure = &failure;
    context->ring = local_ring(options, r);
    context->engine = make_thread_engine(&world);
    context->queue = std::make_unique<OpQueue>(context->engine.get(), &failure, context->ring.get(),
                                               in_background(options.progress, share), share.alone);
    world.set_queue(r, context->queue.get());
    local.push_back(context.get());
    rings.push_back(context->ring.get());
    context->host_ring = rings.front();
    ranks.push_back(std::move(context));
  }
  Watchdog watchdog(watchdog_options(options), rings, local, &failure);
  std::vector<RankEnd> ends(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      set_this_rank(r);
      set_threads(options, share);
      ends[static_cast<size_t>(r)] = run_rank(local[static_cast<size_t>(r)], fn);
    });
  }
  for (std::thread& thread : threads) thread.join();  // the watchdog ends the process where one does not come back
  for (RankContext* rank : local) rank->stop();
  if (failure.failed()) watchdog.announce();
  for (int r = 0; r < n; ++r)
    if (const RankEnd& end = ends[static_cast<size_t>(r)]; end.culprit) rethrow_told(end.error);
  if (failure.failed()) throw PeerLostError(failure.reason());
  for (const RankEnd& end : ends)
    if (end.error) std::rethrow_exception(end.error);  // stopped
}

// This process's rank of a job of processes.
void run_process(int n, const CommOptions& options, const std::function<void(Communicator&)>& fn) {
  const LaunchWorld launched = launch_world();
  const MpiWorld mpi = start_mpi();
  set_process_rank(mpi.rank);
  if (mpi.size != n)
    throw UsageError(
        fmt::format("the mesh has {} ranks, and MPI sees {}: {}{}", n, mpi.size, describe_launch(launched, launch_environment()),
                    mpi.size == 1 && launched.size != 1
                        ? ". The launcher and this MPI do not speak to each other: use this MPI's own mpirun, or srun --mpi=pmix"
                        : ""));
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
  int here = 0, same_mask = 0;
  for (int r = 0; r < n; ++r) {
    auto& peer = peers[static_cast<size_t>(r)];
    if (r != mpi.rank) peer = OpRing::open(ring_path(r));
    OpRing* ring = rings[static_cast<size_t>(r)] = r == mpi.rank ? context.ring.get() : peer.get();
    if (!ring) continue;
    ++here;
    same_mask += ring->record().cpu_mask.load() == context.ring->record().cpu_mask.load();
    if (!context.host_ring) context.host_ring = ring;
  }
  const Share share = share_of_host(n, same_mask, here);
  mpi_barrier();
  if (options.ring_dir.empty()) ::unlink(ring_path(mpi.rank).c_str());
  context.engine = make_mpi_engine();
  context.queue = std::make_unique<OpQueue>(context.engine.get(), &failure, context.ring.get(),
                                            in_background(options.progress, share), share.alone);
  set_threads(options, share);
  Watchdog watchdog(watchdog_options(options), rings, {&context}, &failure);
  const RankEnd end = run_rank(&context, fn);
  if (!failure.failed()) mpi_leave(failure);
  if (!failure.failed()) {
    if (end.error) std::rethrow_exception(end.error);  // stopped
    return;
  }
  abandon_mpi();
  watchdog.announce();
  if (end.culprit) rethrow_told(end.error);
  throw PeerLostError(failure.reason());
}

}  // namespace

LaunchWorld launch_world() { return read_launch(launch_environment()); }

void run_ranks(int n, const CommOptions& options, const std::function<void(Communicator&)>& fn) {
  if (n < 1) throw ValueError(fmt::format("run_ranks: {} ranks", n));
  const LaunchWorld world = launch_world();
  if (world.mpi && world.size > 0 && world.size != n) throw UsageError(world_mismatch(n, world, launch_environment()));
  if (world.mpi) {
    run_process(n, options, fn);
  } else if (n == 1) {
    run_one_rank(options, fn);
  } else {
    run_threads(n, options, fn);
  }
}

void check_thread_ranks(int64_t ranks, const std::string& asked_by) {
  const int64_t most = std::max(64, 8 * available_cores());
  if (ranks > most)
    throw UsageError(
        fmt::format("{}: {} ranks that are threads of this process, which has {} cores: at most {} here; mpirun or srun start "
                    "ranks on more machines",
                    asked_by, ranks, available_cores(), most));
}

}  // namespace weft
