#pragma once
// A micro-batch packed for one forward of one rank. The "whole" is every trajectory's tokens but its last, one after another, in
// the order of the list: its rows, and the response tokens that they predict. A rank of the cp axis feeds some positions of each
// sequence (mesh/token_sharing.h) and, with sequence parallelism, has a slice of those between the blocks; what it computes is
// put together to whole sequences before anything looks at it. Legend: R response tokens of the whole.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "weft/io/trajectory.h"
#include "weft/model/causal_lm.h"
#include "weft/model/routing.h"

namespace weft {

class PackedMicroBatch {
 public:
  // ValueError for a trajectory that was sampled greedily.
  PackedMicroBatch(const CausalLM& model, std::span<const Trajectory* const> trajectories, const kernels::LogitBias* logit_bias);

  // What this rank feeds, and its rows whose next token is a response token.
  const TokenBatch& batch() const { return batch_; }
  const at::Tensor& head_index() const { return head_index_; }  // rows of the batch
  const std::shared_ptr<nn::HeadRows>& head() const { return head_; }
  std::unique_ptr<nn::AttentionContext> attention() const;

  const std::vector<int64_t>& offsets() const { return offsets_; }                    // [trajectories+1] of response tokens
  const std::vector<int64_t>& sequence_offsets() const { return sequence_offsets_; }  // [trajectories+1] of rows

  // Which rows of the whole, and which of its response tokens, this rank's batch and head have.
  const std::vector<int64_t>& fed_rows() const { return fed_rows_; }
  const std::vector<int64_t>& tokens() const;
  // Values of them <-> of all response tokens. whole_tokens is collective over cp.
  std::vector<float> whole_tokens(const at::Tensor& own) const;
  at::Tensor own_tokens(const std::vector<double>& whole, const at::Device& device) const;

  // Which rows of the whole this rank has between the blocks.
  const std::vector<int64_t>& own_rows() const;
  // Their recorded experts. Fails closed: FileError or ValueError for a trace that is missing or does not fit.
  RoutingBuffer recorded_routes() const;
  // An empty buffer for them, to record into.
  RoutingBuffer empty_routes() const;
  // From every rank's recorded rows the traces of whole trajectories. Collective over the ranks that share rows.
  std::vector<RoutingTrace> traces(const RoutingBuffer& own) const;

 private:
  const CausalLM& model_;
  std::span<const Trajectory* const> trajectories_;
  std::vector<std::vector<int32_t>> ids_;
  std::vector<int64_t> offsets_{0}, sequence_offsets_{0};
  std::vector<int64_t> fed_rows_;
  std::vector<std::vector<int64_t>> tokens_;  // by rank of cp: its response tokens of the whole
  std::vector<std::vector<int64_t>> rows_;    // by rank of RankMesh::rows: its rows of the whole
  TokenBatch batch_;
  std::shared_ptr<nn::HeadRows> head_ = std::make_shared<nn::HeadRows>();
  at::Tensor head_index_;
};

}  // namespace weft
