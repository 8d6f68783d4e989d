#include "weft/kernels/target.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

#include "weft/base/error.h"

namespace weft::kernels {
namespace {

constexpr Target kAll[] = {Target::kPortable, Target::kAvx2, Target::kAvx512, Target::kAvx512Bf16};

bool runs_here(Target target) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (target) {
    case Target::kPortable: return true;
    case Target::kAvx2: return avx2;
    case Target::kAvx512: return avx512;
    case Target::kAvx512Bf16: return avx512 && __builtin_cpu_supports("avx512bf16");
  }
#endif
  return target == Target::kPortable;
}

Target initial_target() {
  if (const char* name = std::getenv("WEFT_TARGET")) {
    for (Target t : kAll)
      if (target_name(t) == name) {
        if (!runs_here(t)) throw UsageError(fmt::format("WEFT_TARGET={}: this machine cannot run it", name));
        return t;
      }
    throw UsageError(fmt::format("WEFT_TARGET={}: expected portable, avx2, avx512 or avx512_bf16", name));
  }
  return available_targets().back();
}

std::atomic<int>& current() {
  static std::atomic<int> target{static_cast<int>(initial_target())};
  return target;
}

}  // namespace

std::string_view target_name(Target target) {
  static constexpr std::string_view kNames[] = {"portable", "avx2", "avx512", "avx512_bf16"};
  return kNames[static_cast<int>(target)];
}

std::vector<Target> available_targets() {
  std::vector<Target> out;
  std::copy_if(std::begin(kAll), std::end(kAll), std::back_inserter(out), runs_here);
  return out;
}

Target active_target() { return static_cast<Target>(current().load(std::memory_order_relaxed)); }

void force_target(Target target) {
  if (!runs_here(target)) throw ValueError(fmt::format("SIMD target {}: this machine cannot run it", target_name(target)));
  current().store(static_cast<int>(target), std::memory_order_relaxed);
}

}  // namespace weft::kernels
