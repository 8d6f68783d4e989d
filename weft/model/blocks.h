#pragma once
// The blocks of a decoder: attention, dense MLP, mixture of experts, and the layer around them. They read ModelConfig and hold no
// family's name. Legend: T tokens, H hidden, Hq/Hk query and key/value heads, D head_dim, I MLP width, E experts.

#include <ATen/core/Tensor.h>

#include "weft/model/model_config.h"
#include "weft/model/routing.h"
#include "weft/nn/attention.h"
#include "weft/nn/module.h"
#include "weft/nn/norm.h"
#include "weft/nn/rope.h"
#include "weft/parallel/rank_mesh.h"

namespace weft {

// What a forward is handed besides tokens. Trainer and rollout pass different attention and routing; the blocks are the same.
struct ForwardContext {
  nn::AttentionContext* attention = nullptr;
  Routing* routing = nullptr;
  nn::RopeTable rope;
  at::ScalarType param_dtype = at::kFloat;
  const RankMesh* mesh = nullptr;  // null: one rank computes everything
  int64_t rows = 0;                // of the batch; with sequence parallelism each tp rank has a slice of them between the blocks
  // Of an axis with more than one rank; null else.
  const Communicator* tp() const { return mesh && mesh->tp.size() > 1 ? &mesh->tp : nullptr; }
  bool sequence_parallel() const { return tp() && mesh->sharing.sequence_parallel; }
  const Communicator* ep() const { return mesh && mesh->ep.size() > 1 ? &mesh->ep : nullptr; }
};

class SelfAttention : public nn::Module {
 public:
  SelfAttention(std::string name, const ModelConfig& c, int64_t layer);
  // x [T, H] in param_dtype -> [T, H] fp32.
  at::Tensor forward(const at::Tensor& x, ForwardContext& ctx);

 private:
  const ModelConfig& config_;
  int64_t layer_;
  nn::Parameter *q_, *k_, *v_, *o_, *q_bias_ = nullptr, *k_bias_ = nullptr, *v_bias_ = nullptr, *o_bias_ = nullptr;
  nn::Parameter *q_norm_ = nullptr, *k_norm_ = nullptr;
};

class Mlp : public nn::Module {
 public:
  Mlp(std::string name, const ModelConfig& c);
  at::Tensor forward(const at::Tensor& x, ForwardContext& ctx);

 private:
  nn::Parameter *gate_, *up_, *down_, *gate_bias_ = nullptr, *up_bias_ = nullptr, *down_bias_ = nullptr;
};

// Router and stacked experts: gate_up_proj [E, 2I, H] (gate rows first), down_proj [E, H, I].
class MoeMlp : public nn::Module {
 public:
  MoeMlp(std::string name, const ModelConfig& c, int64_t layer);
  at::Tensor forward(const nn::Normed& x, ForwardContext& ctx);

 private:
  kernels::RouterParams params_;
  int64_t layer_;
  nn::Parameter *router_, *gate_up_, *down_;
};

class DecoderLayer : public nn::Module {
 public:
  DecoderLayer(std::string name, const ModelConfig& c, int64_t layer);
  // x [T, H] fp32: the residual stream.
  at::Tensor forward(const at::Tensor& x, ForwardContext& ctx);

 private:
  float eps_;
  nn::Parameter *input_norm_, *post_norm_;
  SelfAttention* attention_;
  Mlp* mlp_ = nullptr;
  MoeMlp* moe_ = nullptr;
};

}  // namespace weft
