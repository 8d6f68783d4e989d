#pragma once
// Causal attention of the numerics contract (docs/numerics.md, rule 5). Legend: T tokens packed, Hq query heads, Hk key/value
// heads (Hk divides Hq; query head h reads key/value head h / (Hq/Hk)), D head_dim, S sequences.
//
// Order per query row: keys in blocks of 64 from absolute position 0; score = ascending FMA chain over D (plain ascending also in
// bf16, operands widened), then * scale; online softmax per block (exact max; exp; 16 lane sums by key index mod 16 and the lane
// tree); o = o*alpha, then the P*V chain continues on o, keys ascending; segments of 1024 keys start fresh and merge ascending as
// in rule 4; o / l by division, rounded once. Keys above the row's position contribute nothing. Backward is deterministic, not
// layout-promised.
//
// Keys and values are read through KvBlocks, so training (packed) and rollout (paged cache) run the same code.

#include <cstdint>
#include <span>
#include <vector>

#include "weft/kernels/matrix.h"

namespace weft::kernels {

inline constexpr int64_t kKeyBlock = 64;      // keys per softmax block
inline constexpr int64_t kKeySegment = 1024;  // keys per segment

// Shape of a key/value cache: memory [num_blocks, 2, Hk, block elements] where K of a block and head is stored [D, block_size]
// (transposed: scores vectorise over keys) and V is [block_size, D]. block_size divides 64.
struct KvShape {
  int64_t num_kv_heads = 0, head_dim = 0, block_size = 64;
  DType dtype = DType::kF32;
  int64_t block_elements() const { return 2 * num_kv_heads * head_dim * block_size; }
  int64_t block_bytes() const { return block_elements() * dtype_bytes(dtype); }
};

// One sequence's part of a call: query rows [q_begin, q_end) of the packed q sit at positions first_position, +1, ... and read
// keys of blocks[0..]: position p lives in blocks[p / block_size] at p % block_size.
struct AttentionSequence {
  int64_t q_begin = 0, q_end = 0, first_position = 0;
  const int32_t* blocks = nullptr;
};

// Writes k, v [T, Hk*D] (the cache's dtype) of these sequences' rows into the cache.
void write_kv(ConstMatrix k, ConstMatrix v, std::span<const AttentionSequence> sequences, const KvShape& shape, void* cache);

// o [T, Hq*D] from q [T, Hq*D] (same dtype as the cache). lse [T, Hq] fp32 may be null: m + log(l), for the backward.
void attention_forward(ConstMatrix q, std::span<const AttentionSequence> sequences, const KvShape& shape, const void* cache,
                       float scale, Matrix o, float* lse);

// Training form: sequences of keys packed whole, key_offsets [S+1]; the rows of q, o and lse are any of their positions.
// Query rows [begin, end): positions first_position, +1, ... of a sequence.
struct QueryRun {
  int64_t begin = 0, end = 0, sequence = 0, first_position = 0;
};
// All positions of every sequence, in order: q has the rows of k.
std::vector<QueryRun> whole_sequences(std::span<const int64_t> offsets);

// q, k, v, o of one dtype. Builds temporary blocks and calls the same kernel. Runs do not overlap.
void attention_packed_forward(ConstMatrix q, ConstMatrix k, ConstMatrix v, int64_t num_heads, int64_t num_kv_heads,
                              std::span<const int64_t> key_offsets, std::span<const QueryRun> runs, float scale, Matrix o,
                              float* lse);
// dq, dk, dv are written (fp32 or bf16); dk and dv are the share of these query rows. Parallel over (sequence, key/value head).
void attention_packed_backward(ConstMatrix d_o, ConstMatrix q, ConstMatrix k, ConstMatrix v, ConstMatrix o, const float* lse,
                               int64_t num_heads, int64_t num_kv_heads, std::span<const int64_t> key_offsets,
                               std::span<const QueryRun> runs, float scale, Matrix dq, Matrix dk, Matrix dv);

}  // namespace weft::kernels
