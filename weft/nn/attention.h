#pragma once
// The key/value object that a forward is handed: packed sequences in training, a paged cache in rollout. The only thing, besides
// gradients being recorded, in which the two differ.

#include <ATen/core/Tensor.h>

#include <vector>

#include "weft/kernels/attention.h"

namespace weft::nn {

class AttentionContext {
 public:
  virtual ~AttentionContext() = default;
  // q [T, Hq*D], k, v [T, Hk*D] after norm and RoPE, one dtype -> o [T, Hq*D]. `layer` is the global layer id.
  virtual at::Tensor attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) = 0;
};

struct AttentionShape {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float scale = 0.0f;
};

// Causal attention without gradients of query rows over whole sequences of keys, packed: q [T, Hq*D], k, v [K, Hk*D] of one
// dtype, key_offsets [S+1] over the K rows, runs of the T. On any device.
struct AttentionValues {
  at::Tensor o;    // [T, Hq*D]
  at::Tensor lse;  // [T, Hq] fp32 for the gradients, when asked for and the kernels ran
};
AttentionValues attention_values(const AttentionShape& shape, const std::vector<int64_t>& key_offsets,
                                 const std::vector<kernels::QueryRun>& runs, const at::Tensor& q, const at::Tensor& k,
                                 const at::Tensor& v, bool want_lse);
// Its gradients: dq in q's dtype, dk and dv (these query rows' share) in `kv_dtype`.
struct AttentionGradients {
  at::Tensor dq, dk, dv;
};
AttentionGradients attention_gradients(const AttentionShape& shape, const std::vector<int64_t>& key_offsets,
                                       const std::vector<kernels::QueryRun>& runs, const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, const AttentionValues& values, const at::Tensor& d_o,
                                       at::ScalarType kv_dtype);

// Whole sequences packed one after another; offsets [S+1]. Differentiable.
class PackedAttention : public AttentionContext {
 public:
  PackedAttention(AttentionShape shape, std::vector<int64_t> offsets)
      : shape_(shape), offsets_(std::move(offsets)), runs_(kernels::whole_sequences(offsets_)) {}
  at::Tensor attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;

 private:
  AttentionShape shape_;
  std::vector<int64_t> offsets_;
  std::vector<kernels::QueryRun> runs_;
};

// Rows of running requests over a paged cache: writes their keys and values, then attends; no gradients. The cache is host
// memory, so attention runs on the CPU for every device: a step's rows travel, not the cache. The caller owns the cache
// [layers][num_blocks] and the block tables.
class PagedAttention : public AttentionContext {
 public:
  PagedAttention(AttentionShape shape, kernels::KvShape kv, std::vector<kernels::AttentionSequence> sequences,
                 std::vector<void*> layer_caches)
      : shape_(shape), kv_(kv), sequences_(std::move(sequences)), layer_caches_(std::move(layer_caches)) {}
  at::Tensor attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;

 private:
  AttentionShape shape_;
  kernels::KvShape kv_;
  std::vector<kernels::AttentionSequence> sequences_;
  std::vector<void*> layer_caches_;
};

}  // namespace weft::nn
