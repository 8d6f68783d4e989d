#include <ATen/Context.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "weft/base/threads.h"
#include "weft/cli/command.h"
#include "weft/comm/launch_env.h"
#include "weft/kernels/target.h"

namespace weft {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

// The path of a library that this process has mapped, by a part of its name.
std::string mapped_library(const std::string& part) {
  std::ifstream file("/proc/self/maps");
  for (std::string line; std::getline(file, line);)
    if (const size_t slash = line.find('/'); slash != std::string::npos && line.find(part, slash) != std::string::npos) return line.substr(slash);
  return "";
}

}  // namespace

Command doctor_command() {
  return {"doctor",
          "What this machine offers and what weft uses of it; what is off and what to do.",
          "",
          {},
          "weft doctor",
          0,
          0,
          [](const Arguments&, const Registry&) -> int {
            std::vector<std::string> advice;
            std::string targets;
            for (kernels::Target t : kernels::available_targets()) targets += (targets.empty() ? "" : ", ") + std::string(kernels::target_name(t));
            std::cout << "processor      " << cpu_model() << "\n";
            std::cout << "kernel targets " << targets << "; in use: " << kernels::target_name(kernels::active_target()) << "\n";
            if (kernels::available_targets().size() == 1)
              advice.push_back("only the portable kernels run here (no AVX2 with FMA): correct, but about 50 times slower");
            if (std::getenv("WEFT_TARGET")) advice.push_back("WEFT_TARGET is set: unset it to use the best target");
            const CoreLimits limits = core_limits();
            std::cout << fmt::format(
                "cores          {}: {} in the CPU mask, {}, {} processors online\n", available_cores(), limits.mask,
                limits.quota > 0 ? fmt::format("{} by the cgroup's quota", limits.quota) : "no quota of a cgroup",
                sysconf(_SC_NPROCESSORS_ONLN));
            const Environment environment = launch_environment();
            const LaunchWorld launched = read_launch(environment);
            const int here = std::max(launched.local_size, 1);
            std::cout << fmt::format("launcher       {}\n", describe_launch(launched, environment));
            std::cout << fmt::format(
                "threads        {}{}\n", cores_of_rank(limits, here, here),
                here == 1 ? ""
                          : fmt::format(" for each of the {} ranks here, {} where the launcher gave each a CPU mask of its own",
                                        here, cores_of_rank(limits, 1, here)));
            if (bound_to_one_core(launched, limits.mask, sysconf(_SC_NPROCESSORS_ONLN)))
              advice.push_back("mpirun binds this rank to one core: mpirun --bind-to none");
            if (available_cores() < sysconf(_SC_NPROCESSORS_ONLN))
              advice.push_back("the CPU mask or the cgroup leaves this process fewer cores than the machine has");
            const double page = static_cast<double>(sysconf(_SC_PAGESIZE)) / 1e9;
            const double total = page * static_cast<double>(sysconf(_SC_PHYS_PAGES)), free = page * static_cast<double>(sysconf(_SC_AVPHYS_PAGES));
            std::cout << fmt::format("memory         {:.1f} GB free of {:.1f} GB\n", free, total);
            if (free < 2.0) advice.push_back("less than 2 GB of memory is free: lower rollout.kv_cache_tokens and actor.max_tokens_per_micro_batch");
            std::cout << "libtorch       " << TORCH_VERSION << " " << mapped_library("libtorch_cpu") << "\n";
            std::string blas = mapped_library("openblas");
            if (blas.empty()) blas = mapped_library("blas");
            std::cout << "BLAS           " << (blas.empty() ? "none mapped" : blas) << " (weft's kernels do not use it on the CPU)\n";
            if (blas.find("pthread") != std::string::npos)
              advice.push_back("OpenBLAS is the pthread build, whose threads fight libtorch's: apt-get install libopenblas0-openmp");
            std::cout << "CUDA           " << (at::hasCUDA() ? "available" : "not available: device = \"cpu\" only") << "\n";
            std::cout << "denormals      " << (denormals_flushed() ? "flushed, as the kernels need" : "NOT flushed") << "\n";
            if (!denormals_flushed()) advice.push_back("denormals are not flushed on this processor: bits may differ from other machines");
            for (const std::string& a : advice) std::cout << "! " << a << "\n";
            if (advice.empty()) std::cout << "all well\n";
            return 0;
          }};
}

}  // namespace weft
