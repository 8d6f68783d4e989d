#include "weft/train/plan_activations.h"

#include <algorithm>

#include "weft/parallel/tensor_parallel.h"

namespace weft {
namespace {

constexpr int64_t kF = 4;  // bytes of fp32

int64_t share(int64_t length, int64_t ranks) { return (length + ranks - 1) / ranks; }

// One layer: what its ops keep, by block; the most that a block's backward has beside what is kept when it begins; what the
// exchange of rows has in the forward, when all is kept.
struct LayerBytes {
  int64_t attention = 0, attention_extra = 0, mlp = 0, mlp_extra = 0, forward_extra = 0;
  int64_t kept() const { return attention + mlp; }
};

// Between the blocks rows are S, inside T; `w` is the width of param_dtype. (docs/plan.md has the table.)
void add_attention(const ParameterTable& t, const ActivationSizes& a, int64_t w, LayerBytes& out) {
  const int64_t hidden = t.config.hidden_size, rows = a.tokens;
  out.attention += a.slice * (hidden + 1) * kF;  // residual stream in, 1/rms
  out.attention += rows * hidden * w;            // normed
  int64_t q, k, v, kept = 0;
  if (t.latent) {
    const LatentAttentionConfig& l = *t.latent;
    q = k = a.heads * l.qk_head_dim(), v = a.heads * l.v_head_dim;
    if (l.q_lora_rank > 0) kept += rows * (l.q_lora_rank * (kF + w) + kF);
    kept += rows * ((l.kv_lora_rank + l.qk_rope_head_dim) * kF + l.kv_lora_rank * w + kF);
  } else {
    q = a.heads * t.config.head_dim, k = v = a.kv_heads * t.config.head_dim;
    if (t.config.qk_norm) kept += rows * (q + k + a.heads + a.kv_heads) * kF;
  }
  const int64_t o = t.latent ? v : q;
  out.attention += kept + rows * ((q + k + v + o) * w + a.heads * kF);  // q, k, v, o, log-sum-exps
  // In the backward: of o, of q, k, v; with cp the keys and values again, fp32 terms of their gradients and those in another
  // order.
  out.attention_extra = rows * (o + q) * w + (a.cp ? a.all_tokens * ((k + v) * (w + kF) + k * kF) : rows * (k + v) * w);
}

void add_dense(int64_t hidden, int64_t width, const ActivationSizes& a, int64_t w, LayerBytes& out) {
  out.mlp += a.tokens * (hidden * w + width * (2 * kF + w));  // normed, gate, up, their product
  // Of gate and up, in fp32; or of their inputs, when gate and up have gone; with slices of the output, gathered, in fp32.
  int64_t extra = std::max(a.tokens * width * 2 * kF, a.tokens * (2 * hidden - width) * w);
  if (a.slice != a.tokens) extra = std::max(extra, a.tokens * (hidden * kF + width * w));
  out.mlp_extra = std::max(out.mlp_extra, extra);
}

void add_moe(const ParameterTable& t, const ActivationSizes& a, int64_t w, int64_t got, LayerBytes& out) {
  const MoeConfig& m = t.config.moe;
  const int64_t hidden = t.config.hidden_size, sent = a.routed * m.top_k;
  out.mlp += a.slice * hidden * kF;                                    // the router's input: the unrounded norm
  out.mlp += a.slice * (m.num_experts * kF + m.top_k * (kF + 4));      // logits, gates, ids
  out.mlp += got * (hidden * w + m.intermediate_size * (2 * kF + w));  // rows by expert, gate and up, their product
  out.mlp += sent * hidden * w;                                        // what the experts returned
  // Of gate and up, in fp32; with ep before it of the experts' outputs, put in their order in fp32. What came back has gone then.
  int64_t extra = std::max(got * m.intermediate_size * 2 * kF - sent * hidden * w, got * m.intermediate_size * w);
  if (a.ep) {
    extra = std::max(extra, got * hidden * (w + kF + (w < kF ? w : 0)) - sent * hidden * w);
    out.forward_extra = 3 * got * hidden * w;  // rows as they came, outputs by expert and by source
  }
  out.mlp_extra = std::max(out.mlp_extra, extra);
  if (t.shared_intermediate_size > 0) add_dense(hidden, a.shared, a, w, out);
}

// got: rows of a MoE layer's experts; -1: a dense layer.
LayerBytes layer_bytes(const ParameterTable& t, const ActivationSizes& a, int64_t w, int64_t got) {
  LayerBytes out;
  add_attention(t, a, w, out);
  out.mlp += a.slice * (t.config.hidden_size + 1) * kF;  // residual stream, 1/rms
  if (got >= 0)
    add_moe(t, a, w, got, out);
  else
    add_dense(t.config.hidden_size, a.intermediate, a, w, out);
  return out;
}

}  // namespace

ActivationSizes activation_sizes(const ParameterTable& t, const ParallelDims& dims, const PlanOptions& options,
                                 const MicroBatchRows& rows, int64_t rank) {
  const size_t cp_rank = static_cast<size_t>(rank / dims.tp % dims.cp);
  const int64_t tp_rank = rank % dims.tp;
  ActivationSizes a;
  a.cp = dims.cp > 1, a.tp = dims.tp > 1;
  a.ep = dims.ep > 1 && t.config.has_moe();
  a.all_tokens = rows.whole();
  a.tokens = rows.fed[cp_rank];
  a.head_rows = rows.head[cp_rank];
  const auto [begin, end] = slice_of_rows(a.tokens, dims.tp, tp_rank);
  a.slice = options.sequence_parallel ? end - begin : a.tokens;
  a.routed = end - begin;
  a.received.assign(t.config.moe_layer_ids().size(), a.routed * t.config.moe.top_k);
  a.heads = share(t.config.num_heads, dims.tp), a.kv_heads = share(t.config.num_kv_heads, dims.tp);
  const std::vector<int64_t> cut = contraction_boundaries(t.config.intermediate_size, dims.tp);
  a.intermediate = cut[static_cast<size_t>(tp_rank + 1)] - cut[static_cast<size_t>(tp_rank)];
  a.shared = share(t.shared_intermediate_size, dims.tp);
  a.vocab = share(t.config.vocab_size, dims.tp);
  return a;
}

ActivationBytes activation_bytes(const ParameterTable& t, const PlanOptions& options, const ActivationSizes& a) {
  const int64_t w = dtype_bytes(options.param_dtype), hidden = t.config.hidden_size, rows = a.head_rows;
  const int64_t rope = t.latent ? t.latent->qk_rope_head_dim : t.config.head_dim;
  // Ids and positions, the angles of RoPE, the last residual stream and the head's rows of it; of the head: its input, log-probs,
  // log-sum-exps, entropies.
  int64_t ends = a.tokens * (4 + 4 + 4 * t.config.history() + rope * kF + hidden * kF) + rows * (8 + hidden * kF);
  if (a.tp) ends += a.tokens * (4 + 8) * a.vocab / t.config.vocab_size;  // ids of this rank's share, and where they stand
  if (a.cp) ends += a.all_tokens * 16;                                   // the order of positions and of ranks
  ends += (a.tokens - a.slice) * hidden * kF;                            // a slice of the embedding holds all of it
  const int64_t head = rows * (hidden * w + 4 * kF);
  const int64_t flow = a.slice * hidden * kF;  // the residual stream, and as much its gradient
  int64_t kept = ends + head;
  std::vector<LayerBytes> layers;
  size_t moe = 0;
  for (const bool is_moe : t.config.moe_layers) {
    layers.push_back(layer_bytes(t, a, w, is_moe ? a.received[moe++] : -1));
    kept += options.recompute ? flow : layers.back().kept();
  }
  // The head's backward: of its input in param_dtype, then of the residual stream's rows, then of all rows.
  int64_t peak = kept + rows * hidden * kF + a.tokens * hidden * kF - rows * hidden * w;
  if (!options.recompute && !layers.empty())  // the last layer's forward, before the head's
    peak = std::max(peak, kept - head - rows * hidden * kF + layers.back().forward_extra);
  int64_t left = kept - rows * hidden * w;
  for (size_t i = layers.size(); i-- > 0;) {
    const LayerBytes& layer = layers[i];
    const int64_t extra = flow + std::max(layer.mlp_extra, layer.attention_extra + flow - layer.mlp);
    // Once more with recompute: its input is there already, its output is new, and the gradient waits.
    peak = std::max(peak, left + (options.recompute ? layer.kept() + std::max(extra, layer.forward_extra) : extra));
    left -= options.recompute ? flow : layer.kept();
  }
  return {kept, peak};
}

}  // namespace weft
