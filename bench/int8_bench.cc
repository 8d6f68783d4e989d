// Decoding with int8 weights against bf16 weights: the same product, each the best of many runs taken in turn. int8_bench
// [--threads N] [--seconds S]. JSON on stdout; "of_bf16" is int8's time as a share of bf16's.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/peak.h"
#include "weft/base/random.h"
#include "weft/base/threads.h"
#include "weft/kernels/gemm.h"

namespace weft::kernels {
namespace {

int run(int threads, double seconds) {
  set_num_threads(threads);
  set_denormals_flushed();
  fmt::print("{{\"target\": \"{}\", \"threads\": {}, \"figures\": [", target_name(active_target()), threads);
  bool first = true;
  // Weights of more than the caches hold, as a model's are when the next token comes.
  constexpr int64_t kN = 4096, kK = 4096;
  const CounterRng rng(1);
  std::vector<bf16> w(kN * kK), x(512 * kK);
  std::vector<int8_t> q(kN * kK);
  const std::vector<float> scales(kN, 0.01f);
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<int8_t>(static_cast<int>(rng.below(i, 255)) - 127);
  for (size_t i = 0; i < w.size(); ++i) w[i] = float_to_bf16(static_cast<float>(q[i]) * 0.01f);
  for (size_t i = 0; i < x.size(); ++i) x[i] = float_to_bf16(static_cast<float>(rng.uniform01(i)) - 0.5f);
  PackedWeight rounded, packed;
  rounded.pack(w.data(), DType::kBF16, 1, kN, kK);
  packed.pack(q.data(), scales.data(), 1, kN, kK);
  for (const Chain chain : {Chain::kSingle, Chain::kLeaves})
    for (const int64_t m : {1, 2, 4, 8, 16, 32, 64, 256}) {
      std::vector<float> y(static_cast<size_t>(m * kN));
      const ConstMatrix xm{x.data(), DType::kBF16, m, kK, kK};
      double best[2] = {1e9, 1e9};
      for (int turn = 0; turn < 4; ++turn)
        for (int i = 0; i < 2; ++i) {
          const PackedWeight& weight = i ? packed : rounded;
          const auto body = [&] { gemm(xm, weight, nullptr, {y.data(), DType::kF32, m, kN, kN}, chain); };
          best[i] = std::min(best[i], bench::best_seconds(body, seconds / 4, threads));
        }
      fmt::print("{}\n  {{\"name\": \"{} M={}\", \"of_bf16\": {:.3f}, \"bf16_us\": {:.0f}, \"int8_us\": {:.0f}}}",
                 first ? "" : ",", chain == Chain::kSingle ? "chain" : "leaves", m, best[1] / best[0], best[0] * 1e6,
                 best[1] * 1e6);
      std::fflush(stdout);
      first = false;
    }
  fmt::print("\n]}}\n");
  return 0;
}

}  // namespace
}  // namespace weft::kernels

int main(int argc, char** argv) {
  int threads = 1;
  double seconds = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string arg = argv[i];
    if (arg == "--threads") threads = std::atoi(argv[i + 1]);
    if (arg == "--seconds") seconds = std::atof(argv[i + 1]);
    if (arg == "--cpu-time") weft::bench::cpu_time = std::atoi(argv[i + 1]) != 0;
  }
  return weft::kernels::run(threads < 1 ? 1 : threads, seconds);
}
