#pragma once
// One tile of attention on the calling thread, one table per SIMD target (internal).

#include <cstdint>

#include "weft/base/dtype.h"
#include "weft/kernels/attention.h"
#include "weft/kernels/target.h"

namespace weft::kernels {

inline constexpr int64_t kQueryTile = 48;  // rows of a tile: (position, head of the group), positions ascending

constexpr int64_t padded16(int64_t n) { return (n + 15) / 16 * 16; }

// Query rows that share a key/value head. Keys are read from the blocks up to the last row's position, no further: slots beyond
// may hold anything.
struct AttentionTile {
  int64_t rows = 0;
  const void* q[kQueryTile];
  void* o[kQueryTile];
  float* lse[kQueryTile];  // null: not wanted
  int64_t position[kQueryTile];
  bool bf16_io = false;
  int64_t head_dim = 0, block_size = 0;
  const char* keys = nullptr;    // this head's part of block 0: [head_dim, block_size]
  const char* values = nullptr;  // [block_size, head_dim]
  int64_t block_bytes = 0;       // from one block to the next
  const int32_t* blocks = nullptr;
  float scale = 1.0f;
  float* scratch = nullptr;  // attention_scratch(head_dim) floats
};
constexpr int64_t attention_scratch(int64_t head_dim) {
  return kQueryTile * (3 * padded16(head_dim) + 64) + 64 * (head_dim + padded16(head_dim));
}

// One (sequence, key/value head) of the backward. Strides count elements; q, d_o, o, dq rows hold the group's heads side by side.
// k, v, dk and dv begin at the sequence's first row, the others at row 0 of the call.
struct AttentionBackward {
  int64_t length = 0, group = 0, head_dim = 0;
  const QueryRun* runs = nullptr;  // of this sequence
  int64_t num_runs = 0;
  int64_t seen = 0;                        // keys that some query row sees: the others' gradients are zero
  bool bf16_in = false, bf16_out[3] = {};  // of dq, dk, dv
  const void *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr, *d_o = nullptr;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0, o_stride = 0, d_o_stride = 0;
  bool bf16_d_o = false;
  const float* lse = nullptr;
  int64_t lse_stride = 0;
  float scale = 1.0f;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  int64_t dq_stride = 0, dk_stride = 0, dv_stride = 0;
  float* scratch = nullptr;  // attention_backward_scratch(seen, head_dim) floats
};
constexpr int64_t attention_backward_scratch(int64_t seen, int64_t head_dim) {
  const int64_t keys = (seen + 63) / 64 * 64;
  return keys * (2 * head_dim + 3 * padded16(head_dim)) + kQueryTile * (3 * padded16(head_dim) + 2 * 64);
}

struct AttentionTable {
  void (*forward)(const AttentionTile& tile);
  void (*backward)(const AttentionBackward& task);
};
namespace portable {
extern const AttentionTable kAttention;
}
namespace avx2 {
extern const AttentionTable kAttention;
}
namespace avx512 {
extern const AttentionTable kAttention;
}

inline const AttentionTable& attention_table() { return select(portable::kAttention, avx2::kAttention, avx512::kAttention); }

}  // namespace weft::kernels
