#pragma once
// What gemm.cc asks of each SIMD target: one block of outputs on the calling thread. Internal.

#include <cstdint>

#include "weft/kernels/gemm.h"
#include "weft/kernels/matrix.h"

namespace weft::kernels {

inline constexpr int64_t kPanelColumns = 16;
// Elements of one panel: fp32 and int8 [k][16], bf16 [ceil(k / 2)][16][2], both zero-padded.
constexpr int64_t panel_elements(DType dtype, int64_t k) { return kPanelColumns * (dtype == DType::kBF16 ? (k + 1) / 2 * 2 : k); }

// y[0:rows, 16 * first_panel : min(n, 16 * last_panel)]; y, bias and panels begin at column 0.
struct ForwardBlock {
  ConstMatrix x;  // [rows, k]
  const void* panels = nullptr;
  DType w_dtype = DType::kF32;
  int64_t n = 0, first_panel = 0, last_panel = 0;
  const float* bias = nullptr;
  const float* scales = nullptr;  // of the outputs of int8 weights, for whole panels; begin at column 0
  Matrix y;
  LeafSpan leaves{0, 0, 0};  // count 0: one chain
};

// C [rows, cols] (+)= A B in chains of `chain` over depth, each from +0, added ascending. A(i, d) is a[i][d], or a[d][i] if
// a_transposed. b is [depth, cols]. add: to fp32 C, else C starts as the first chain. Pairs go odd first where both are bf16.
struct GradBlock {
  ConstMatrix a, b;
  bool a_transposed = false;
  int64_t rows = 0, cols = 0, depth = 0, chain = 0;
  Matrix c;
  bool add = false;
};

struct GemmTable {
  void (*forward)(const ForwardBlock&);
  void (*grad)(const GradBlock&);
  // dbias[0:cols] += column sums of dy, in chains of 256 rows.
  void (*bias_grad)(ConstMatrix dy, float* dbias);
  int64_t tile_rows;
};

namespace portable {
extern const GemmTable kGemmTable;
}
namespace avx2 {
extern const GemmTable kGemmTable;
}
namespace avx512 {
extern const GemmTable kGemmTable;
}
namespace avx512_bf16 {
extern const GemmTable kGemmTable;
}

// The calling thread's buffer number `slot`, at least n floats, 64-byte aligned; contents are undefined and last until the next
// call for the same slot. Grows and is kept, so that calls do not allocate.
enum class Scratch : int { kA, kB, kC, kTree, kCount };
float* scratch(Scratch slot, int64_t n);

}  // namespace weft::kernels
