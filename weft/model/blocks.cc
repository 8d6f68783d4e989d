#include "weft/model/blocks.h"

#include <ATen/core/Tensor.h>

#include "weft/nn/activation.h"
#include "weft/nn/linear.h"
#include "weft/nn/moe.h"
#include "weft/parallel/expert_parallel.h"
#include "weft/parallel/tensor_parallel.h"

namespace weft {

using nn::Precision;

namespace {

// A plan may leave a block whole on every rank of an axis (parallelize.h).
bool is_cut(const nn::Parameter& p) { return p.compute_shape() != p.shape(); }

// What a block of column-, then row-parallel products reads, and its last product; `weight` says whether tp cuts it.
at::Tensor block_input(const at::Tensor& x, const nn::Parameter& weight, const ForwardContext& ctx) {
  if (!ctx.tp()) return x;
  if (!is_cut(weight)) return ctx.sequence_parallel() ? gather_rows(x, ctx.rows, *ctx.tp()) : x;
  return ctx.sequence_parallel() ? gather_for_columns(x, ctx.rows, *ctx.tp()) : copy_to_ranks(x, *ctx.tp());
}
at::Tensor block_output(const at::Tensor& x, nn::Parameter& weight, nn::Parameter* bias, const ForwardContext& ctx) {
  if (ctx.tp() && is_cut(weight)) return row_parallel_linear(x, weight, bias, *ctx.tp(), ctx.sequence_parallel());
  const at::Tensor y = nn::linear(x, weight, bias, at::kFloat, kernels::Chain::kLeaves);
  return ctx.sequence_parallel() ? slice_rows(y, *ctx.tp()) : y;
}

}  // namespace

SelfAttention::SelfAttention(std::string name, const ModelConfig& c, int64_t layer)
    : Module(std::move(name)), config_(c), layer_(layer) {
  const int64_t q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
  q_ = add_parameter("q_proj.weight", {q, c.hidden_size});
  k_ = add_parameter("k_proj.weight", {kv, c.hidden_size});
  v_ = add_parameter("v_proj.weight", {kv, c.hidden_size});
  o_ = add_parameter("o_proj.weight", {c.hidden_size, q});
  if (c.qkv_bias) {
    q_bias_ = add_parameter("q_proj.bias", {q}, Precision::kFp32);
    k_bias_ = add_parameter("k_proj.bias", {kv}, Precision::kFp32);
    v_bias_ = add_parameter("v_proj.bias", {kv}, Precision::kFp32);
  }
  if (c.o_bias) o_bias_ = add_parameter("o_proj.bias", {c.hidden_size}, Precision::kFp32);
  if (c.qk_norm) {
    q_norm_ = add_parameter("q_norm.weight", {c.head_dim}, Precision::kFp32);
    k_norm_ = add_parameter("k_norm.weight", {c.head_dim}, Precision::kFp32);
  }
}

at::Tensor SelfAttention::forward(const at::Tensor& x, ForwardContext& ctx) {
  return run([&] {
    const at::Tensor in = block_input(x, *o_, ctx);
    // q and k stay fp32 through norm and RoPE and are rounded once, after it; v once, out of its product.
    auto project = [&](nn::Parameter* w, nn::Parameter* bias, nn::Parameter* norm) {
      at::Tensor y = nn::linear(in, *w, bias, at::kFloat);
      if (norm) y = nn::rms_norm(y, *norm, config_.norm_eps, at::kFloat, true).exact;
      return nn::rope(y, y.size(1) / config_.head_dim, ctx.rope, ctx.param_dtype);
    };
    at::Tensor q = project(q_, q_bias_, q_norm_);
    at::Tensor k = project(k_, k_bias_, k_norm_);
    at::Tensor v = nn::linear(in, *v_, v_bias_, ctx.param_dtype);
    at::Tensor o = ctx.attention->attend(layer_, q, k, v);
    return block_output(o, *o_, o_bias_, ctx);
  });
}

Mlp::Mlp(std::string name, const ModelConfig& c) : Module(std::move(name)) {
  gate_ = add_parameter("gate_proj.weight", {c.intermediate_size, c.hidden_size});
  up_ = add_parameter("up_proj.weight", {c.intermediate_size, c.hidden_size});
  down_ = add_parameter("down_proj.weight", {c.hidden_size, c.intermediate_size});
  if (c.mlp_bias) {
    gate_bias_ = add_parameter("gate_proj.bias", {c.intermediate_size}, Precision::kFp32);
    up_bias_ = add_parameter("up_proj.bias", {c.intermediate_size}, Precision::kFp32);
    down_bias_ = add_parameter("down_proj.bias", {c.hidden_size}, Precision::kFp32);
  }
}

at::Tensor Mlp::forward(const at::Tensor& x, ForwardContext& ctx) {
  return run([&] {
    const at::Tensor in = block_input(x, *down_, ctx);
    at::Tensor gate = nn::linear(in, *gate_, gate_bias_, at::kFloat), up = nn::linear(in, *up_, up_bias_, at::kFloat);
    return block_output(nn::swiglu(gate, up, ctx.param_dtype), *down_, down_bias_, ctx);
  });
}

MoeMlp::MoeMlp(std::string name, const ModelConfig& c, int64_t layer) : Module(std::move(name)), layer_(layer) {
  const MoeConfig& m = c.moe;
  params_.score = m.score;
  params_.top_k = m.top_k;
  params_.normalize = m.normalize;
  params_.scale = m.scale;
  router_ = add_parameter("gate.weight", {m.num_experts, c.hidden_size}, Precision::kFp32);
  gate_up_ = add_parameter("experts.gate_up_proj", {m.num_experts, 2 * m.intermediate_size, c.hidden_size});
  down_ = add_parameter("experts.down_proj", {m.num_experts, c.hidden_size, m.intermediate_size});
}

at::Tensor MoeMlp::forward(const nn::Normed& x, ForwardContext& ctx) {
  return run([&] {
    at::Tensor logits = nn::router_logits(x.exact, *router_);
    at::Tensor ids = ctx.routing->route(layer_, logits, params_);
    at::Tensor gates = nn::router_gates(logits, ids, params_);
    const auto experts = [&](const at::Tensor& rows, const at::Tensor& g, const at::Tensor& i) {
      return ctx.ep() && is_cut(*gate_up_) ? moe_experts(rows, g, i, *gate_up_, *down_, *ctx.ep())
                                           : nn::moe_experts(rows, g, i, *gate_up_, *down_);
    };
    if (!ctx.tp() || ctx.sequence_parallel()) return experts(x.rounded, gates, ids);
    // Every tp rank has all rows: each does its slice.
    const at::Tensor y = experts(slice_rows(x.rounded, *ctx.tp()), slice_rows(gates, *ctx.tp()), slice_rows(ids, *ctx.tp()));
    return gather_rows(y, x.rounded.size(0), *ctx.tp());
  });
}

DecoderLayer::DecoderLayer(std::string name, const ModelConfig& c, int64_t layer) : Module(std::move(name)), eps_(c.norm_eps) {
  input_norm_ = add_parameter("input_layernorm.weight", {c.hidden_size}, Precision::kFp32);
  attention_ = add_module<SelfAttention>("self_attn", c, layer);
  post_norm_ = add_parameter("post_attention_layernorm.weight", {c.hidden_size}, Precision::kFp32);
  if (c.moe_layers[static_cast<size_t>(layer)])
    moe_ = add_module<MoeMlp>("mlp", c, layer);
  else
    mlp_ = add_module<Mlp>("mlp", c);
}

at::Tensor DecoderLayer::forward(const at::Tensor& x, ForwardContext& ctx) {
  return run([&] {
    at::Tensor h = nn::add(x, attention_->forward(nn::rms_norm(x, *input_norm_, eps_, ctx.param_dtype, false).rounded, ctx));
    nn::Normed n = nn::rms_norm(h, *post_norm_, eps_, ctx.param_dtype, moe_ != nullptr);
    return nn::add(h, moe_ ? moe_->forward(n, ctx) : mlp_->forward(n.rounded, ctx));
  });
}

}  // namespace weft
