// Ranks as threads against ranks as processes, in one run: comm_bench [--ranks 2,4] [--mb 0.0625,1,16,128] [--gigabytes G].
// A JSON line a figure. GB/s = size / time, where size is the gathered total of an all-gather and else the buffer of a rank. "mpi" is
// our MPI engine, "mpi_own" MPI's own collective (for a reduce-scatter MPI_Reduce_scatter_block, whose order of sums is another);
// ratios say how many times faster threads are. Each side is measured twice, in turns, and its best repetition counts.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "weft/base/clock.h"
#include "weft/base/subprocess.h"
#include "weft/base/threads.h"
#include "weft/comm/launch.h"

#ifdef WEFT_BENCH_MPI
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#endif

namespace weft {
namespace {

struct Settings {
  std::vector<int> ranks{2, 4};
  std::vector<double> megabytes{0.0625, 1, 16, 128};
  double gigabytes = 2;  // moved per figure and turn, at most 400 repetitions
};

using Figures = std::map<std::string, double>;  // "all_gather 2 1048576" -> best seconds of one operation

const char* const kOps[] = {"all_gather_shared", "all_gather", "reduce_scatter", "all_to_all"};

// Seconds of one call: the best of many short repetitions, some of which fall into quiet moments of a machine that others use too.
template <class Body>
double best_seconds(Communicator& comm, double gigabytes, int64_t bytes, const Body& body) {
  const int calls = std::max(1, static_cast<int>((1 << 20) / bytes));
  const int repetitions = std::clamp(static_cast<int>(gigabytes * 1e9 / static_cast<double>(bytes * calls)), 8, 400);
  for (int i = 0; i < 2; ++i) body();
  double best = 1e9;
  for (int r = 0; r < repetitions; ++r) {
    comm.barrier().wait();
    const double begin = real_clock().now();
    for (int i = 0; i < calls; ++i) body();
    best = std::min(best, (real_clock().now() - begin) / calls);
  }
  return best;
}

Figures measure(Communicator& comm, const Settings& settings, bool mpi_own) {
  Figures figures;
  const int n = comm.size();
  for (const double megabytes : settings.megabytes) {
    const int64_t bytes = static_cast<int64_t>(megabytes * (1 << 20)), share = bytes / n;
    const std::vector<int64_t> counts(static_cast<size_t>(n), share), floats(static_cast<size_t>(n), share / 4);
    // Half a page apart within their pages: MPI's copies have the bad case that comm/copy_bytes.h describes, ours do not.
    std::vector<std::byte> a(static_cast<size_t>(bytes)), memory(static_cast<size_t>(bytes) + 2048);
    std::byte* const b = memory.data() + 2048;
    SharedBuffer shared = comm.shared_buffer(bytes);
    const auto note = [&](const char* op, const auto& body) {
      figures[fmt::format("{} {} {}", op, n, bytes)] = best_seconds(comm, settings.gigabytes, bytes, body);
    };
    if (mpi_own) {
#ifdef WEFT_BENCH_MPI
      const int part = static_cast<int>(share);
      note("all_gather", [&] { MPI_Allgather(a.data(), part, MPI_BYTE, b, part, MPI_BYTE, MPI_COMM_WORLD); });
      note("all_to_all", [&] { MPI_Alltoall(a.data(), part, MPI_BYTE, b, part, MPI_BYTE, MPI_COMM_WORLD); });
      note("reduce_scatter", [&] { MPI_Reduce_scatter_block(a.data(), b, part / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
#endif
    } else {
      note("all_gather", [&] { comm.all_gather(a.data(), b, counts, DType::kU8).wait(); });
      note("all_to_all", [&] { comm.all_to_all(a.data(), counts, b, counts, DType::kU8).wait(); });
      note("reduce_scatter", [&] { comm.reduce_scatter(a.data(), b, floats, DType::kF32, ReduceOp::kSum).wait(); });
      note("all_gather_shared", [&] {
        comm.all_gather_shared(a.data(), counts, DType::kU8, shared).wait();
        shared.release();
      });
    }
  }
  return figures;
}

void keep_best(Figures* all, const std::string& side, const Figures& more) {
  for (const auto& [name, seconds] : more) {
    double& best = all->try_emplace(side + " " + name, seconds).first->second;
    best = std::min(best, seconds);
  }
}

Figures threads(int n, const Settings& settings) {
  Figures out;
  run_ranks(n, {}, [&](Communicator& world) {
    Figures mine = measure(world, settings, false);
    if (world.rank() == 0) out = std::move(mine);
  });
  return out;
}

// Under mpirun: prints "side op ranks bytes seconds".
void process(const Settings& settings) {
  run_ranks(launch_world().size, {}, [&](Communicator& world) {
    for (const bool own : {false, true})
      for (const auto& [name, seconds] : measure(world, settings, own))
        if (world.rank() == 0) fmt::print("{} {} {}\n", own ? "mpi_own" : "mpi", name, seconds);
  });
}

Figures processes(int n, const std::vector<std::string>& arguments) {
  Figures out;
#ifdef WEFT_BENCH_MPI
  SubprocessOptions options;
  options.argv = {WEFT_MPIRUN, "--allow-run-as-root", "--oversubscribe", "--quiet", "-n", std::to_string(n), std::filesystem::read_symlink("/proc/self/exe")};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  Subprocess program(options);
  std::string line, side, op, ranks, bytes;
  while (program.read_line(&line, 600) == PipeStatus::kDone) {
    std::istringstream words(line);
    double seconds = 0;
    if (words >> side >> op >> ranks >> bytes >> seconds) out[fmt::format("{} {} {} {}", side, op, ranks, bytes)] = seconds;
  }
  if (!program.finish(30) || program.exit_code() != 0) throw SystemError("mpirun: " + program.stderr_tail());
#else
  (void)n, (void)arguments;
#endif
  return out;
}

std::vector<double> numbers(const std::string& text) {
  std::vector<double> out;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) out.push_back(std::stod(item));
  return out;
}

void run(const std::vector<std::string>& arguments) {
  Settings settings;
  for (size_t i = 0; i + 1 < arguments.size(); i += 2) {
    const std::vector<double> values = numbers(arguments[i + 1]);
    if (arguments[i] == "--ranks") settings.ranks.assign(values.begin(), values.end());
    else if (arguments[i] == "--mb") settings.megabytes = values;
    else if (arguments[i] == "--gigabytes") settings.gigabytes = values.at(0);
    else throw UsageError("comm_bench [--ranks 2,4] [--mb 0.0625,1,16,128] [--gigabytes G]");
  }
  if (launch_world().mpi) return process(settings);
  for (const int n : settings.ranks) {
    Figures all;
    for (int turn = 0; turn < 2; ++turn) {
      keep_best(&all, "threads", threads(n, settings));
      for (const auto& [name, seconds] : processes(n, arguments)) keep_best(&all, name.substr(0, name.find(' ')), {{name.substr(name.find(' ') + 1), seconds}});
    }
    for (const double megabytes : settings.megabytes) {
      const auto bytes = static_cast<int64_t>(megabytes * (1 << 20));
      for (const char* op : kOps) {
        const std::string name = fmt::format("{} {} {}", op, n, bytes);
        // What a process has instead of a shared gather is an all-gather.
        const std::string rival = fmt::format("{} {} {}", std::string_view(op) == "all_gather_shared" ? "all_gather" : op, n, bytes);
        const double ours = all.at("threads " + name);
        fmt::print("{{\"op\": \"{}\", \"ranks\": {}, \"mb\": {}, \"threads_gb_s\": {:.2f}", op, n, megabytes, 1e-9 * static_cast<double>(bytes) / ours);
        for (const char* side : {"mpi", "mpi_own"})
          if (const auto found = all.find(fmt::format("{} {}", side, rival)); found != all.end())
            fmt::print(", \"{}_gb_s\": {:.2f}, \"threads_to_{}\": {:.2f}", side, 1e-9 * static_cast<double>(bytes) / found->second, side, found->second / ours);
        fmt::print(", \"cores\": {}}}\n", available_cores());
        std::fflush(stdout);
      }
    }
  }
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    weft::run({argv + 1, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "comm_bench: {}\n", error.what());
    return 1;
  }
}
