#pragma once
// A decoder language model: embeddings (over-encoded where the config says so), layers, final norm, head (of the vocabulary or, in
// critics and reward models, of one score). One definition for
// trainer and rollout; they differ in the attention and routing objects of ForwardContext and in whether gradients are recorded.

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

#include "weft/model/blocks.h"
#include "weft/model/token_batch.h"
#include "weft/nn/head.h"

namespace weft {

// How a forward of the trainer runs; the rollout uses the defaults.
struct ForwardOptions {
  bool recompute = false;  // keep only each layer's input and run the layer again in backward
};

class CausalLM : public nn::Module {
 public:
  // Built without memory; materialize() allocates. `param_dtype` is fp32 or bf16 (docs/numerics.md, rule 7).
  CausalLM(ModelConfig config, at::ScalarType param_dtype);
  void materialize(const at::Device& device);
  // Before it: where its parameters lie on the CPU.
  void set_memory(const nn::ParameterMemory& memory);
  // What all panels take once every parameter has been read; 0 where it is sharded: panels of gathered parameters come and go.
  int64_t panel_bytes() const;

  const ModelConfig& config() const { return config_; }
  at::ScalarType param_dtype() const { return param_dtype_; }
  nn::AttentionShape attention_shape() const;
  // nullptr: no such parameter.
  nn::Parameter* find_parameter(const std::string& name) const;
  int64_t num_parameters() const;
  // Who shares its computation; null: this rank alone. parallelize() sets it.
  void set_mesh(std::shared_ptr<const RankMesh> mesh) { mesh_ = std::move(mesh); }
  const RankMesh* mesh() const { return mesh_.get(); }

  // The residual stream after the last layer, [T, H] fp32. `routing` is asked for the rows that this rank has between the blocks.
  at::Tensor forward(const TokenBatch& batch, nn::AttentionContext& attention, Routing& routing, ForwardOptions options = {});
  // Final norm of any rows of it, [R, H] in param_dtype.
  at::Tensor final_norm(const at::Tensor& x);
  // Logits [R, V] fp32 of normed rows; no gradients are recorded. The same bits as inside log_probs.
  at::Tensor logits(const at::Tensor& normed);
  // With config().score_head: the score of each normed row, [R] fp32.
  at::Tensor scores(const at::Tensor& normed);
  nn::HeadOutput log_probs(const at::Tensor& normed, std::shared_ptr<const nn::HeadRows> rows, bool want_entropy);

 private:
  at::Tensor embed(const TokenBatch& batch);
  at::Tensor over_rows(const at::Tensor& index, nn::Parameter& table);

  ModelConfig config_;
  at::ScalarType param_dtype_;
  at::Device device_;
  nn::Parameter *embed_tokens_, *norm_, *head_;
  std::vector<nn::Parameter*> over_tables_, over_projections_;
  std::vector<DecoderLayer*> layers_;
  std::map<std::string, nn::Parameter*> by_name_;
  std::shared_ptr<const RankMesh> mesh_;
};

// N(0, 0.02) from the run seed and each parameter's name, norms 1, biases 0: training from scratch.
void init_weights(CausalLM& model, uint64_t seed);

}  // namespace weft
