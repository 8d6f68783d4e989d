#pragma once
// Peaks of this machine: fp32 FMA from loops whose accumulators never leave registers (in assembly: a compiled loop spills and
// shows half the true rate). A kernel that exceeds its peak by more than 3 % is a bug of the bench.

#include <ctime>
#include <thread>
#include <vector>

namespace weft::bench {

// What is measured: wall time, or on a machine that others use too, CPU time of the calling thread (peaks) or of the process
// (bodies).
inline bool cpu_time = false;

inline double clock_seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
inline double now() { return clock_seconds(cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC); }

#define WEFT_FMA4(op, r, a, b, c, d)                                                                                     \
  op " %%" r "0,%%" r "1,%%" r a "\n" op " %%" r "0,%%" r "1,%%" r b "\n" op " %%" r "0,%%" r "1,%%" r c "\n" op " %%" r \
     "0,%%" r "1,%%" r d "\n"

// Twelve independent accumulators: FMA latency 4 or 5 at two a cycle needs ten. Returns seconds for `iterations` x 12 FMAs.
inline double fma256_seconds(long iterations) {
  const double begin = now();
  asm volatile("vxorps %%ymm0,%%ymm0,%%ymm0\n vmovaps %%ymm0,%%ymm1\n 1:\n" WEFT_FMA4("vfmadd231ps", "ymm", "3", "4", "5", "6")
                   WEFT_FMA4("vfmadd231ps", "ymm", "7", "8", "9", "10")
                       WEFT_FMA4("vfmadd231ps", "ymm", "11", "12", "13", "14") "sub $1,%0\n jnz 1b\n vzeroupper\n"
               : "+r"(iterations)::"memory", "cc", "xmm0", "xmm1", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                 "xmm10", "xmm11", "xmm12", "xmm13", "xmm14");
  return now() - begin;
}

inline double fma512_seconds(long iterations) {
  const double begin = now();
  asm volatile("vxorps %%xmm0,%%xmm0,%%xmm0\n vmovaps %%ymm0,%%ymm1\n 1:\n" WEFT_FMA4("vfmadd231ps", "zmm", "3", "4", "5", "6")
                   WEFT_FMA4("vfmadd231ps", "zmm", "7", "8", "9", "10")
                       WEFT_FMA4("vfmadd231ps", "zmm", "11", "12", "13", "14") "sub $1,%0\n jnz 1b\n vzeroupper\n"
               : "+r"(iterations)::"memory", "cc", "xmm0", "xmm1", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                 "xmm10", "xmm11", "xmm12", "xmm13", "xmm14");
  return now() - begin;
}
#undef WEFT_FMA4

// Flop per second of `threads` threads together, with the widest FMA of the machine; the best of several short runs.
inline double fma_peak(int threads) {
  const bool wide = __builtin_cpu_supports("avx512f");
  constexpr long kIterations = 1000000;
  const double flops = kIterations * 12.0 * 2.0 * (wide ? 16 : 8);
  const auto one = [&] {
    double best = 1e9;
    for (int i = 0; i < 12; ++i) {
      const double seconds = wide ? fma512_seconds(kIterations) : fma256_seconds(kIterations);
      best = seconds < best ? seconds : best;
    }
    return flops / best;
  };
  std::vector<double> rates(static_cast<size_t>(threads));
  std::vector<std::thread> pool;
  for (double& rate : rates) pool.emplace_back([&rate, &one] { rate = one(); });
  double sum = 0;
  for (size_t i = 0; i < rates.size(); ++i) {
    pool[i].join();
    sum += rates[i];
  }
  return sum;
}

// The least seconds of `body` over at least `seconds` of runs. CPU time is shared out over the threads: a spinning thread counts.
template <class Body>
double best_seconds(const Body& body, double seconds, int threads) {
  body();
  double best = 1e9;
  const clockid_t clock = cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
  const double begin = clock_seconds(clock);
  for (int i = 0; i < 3 || clock_seconds(clock) - begin < seconds; ++i) {
    const double start = clock_seconds(clock);
    body();
    const double taken = (clock_seconds(clock) - start) / (cpu_time ? threads : 1);
    best = taken < best ? taken : best;
  }
  return best;
}

}  // namespace weft::bench
