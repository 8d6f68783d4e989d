#pragma once
// Which SIMD target runs. Every target gives the same bits (docs/numerics.md), so the choice is about speed only; tests force each.

#include <string_view>
#include <vector>

namespace weft::kernels {

enum class Target : int {
  kPortable = 0,    // scalar loops, std::fma
  kAvx2 = 1,        // AVX2 + FMA
  kAvx512 = 2,      // AVX-512 F/BW/DQ/VL
  kAvx512Bf16 = 3,  // the same, and vdpbf16ps for bf16 x bf16 chains
};

std::string_view target_name(Target target);
// What this machine can run, slowest first. Always holds kPortable.
std::vector<Target> available_targets();
// The best available one, or $WEFT_TARGET (portable, avx2, avx512, avx512_bf16), or what force_target set.
Target active_target();
// For tests and `weft doctor`. Not thread-safe against running kernels. ValueError when the machine lacks it.
void force_target(Target target);

// Picks a target's table of functions. Only matrix products have instructions for bf16 pairs; the rest is the AVX-512 table.
template <class Table>
const Table& select(const Table& portable, const Table& avx2, const Table& avx512, const Table& avx512_bf16) {
  switch (active_target()) {
    case Target::kPortable: return portable;
    case Target::kAvx2: return avx2;
    case Target::kAvx512: return avx512;
    case Target::kAvx512Bf16: return avx512_bf16;
  }
  return portable;
}
template <class Table>
const Table& select(const Table& portable, const Table& avx2, const Table& avx512) {
  return select(portable, avx2, avx512, avx512);
}

}  // namespace weft::kernels
