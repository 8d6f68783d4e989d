#pragma once
// Attention over sequences whose positions are shared among the ranks of the cp axis (mesh/token_sharing.h): each rank has its
// query rows, gathers all keys and values of its heads, puts them into the order of positions and walks them as one rank does, so
// that the bits are one rank's. Kept for the backward are the own rows alone: keys and values are gathered again, and their
// gradients summed over the ranks in fp32 and rounded once.

#include <memory>

#include "weft/comm/communicator.h"
#include "weft/mesh/token_sharing.h"
#include "weft/nn/attention.h"

namespace weft {

class ContextParallelAttention : public nn::AttentionContext {
 public:
  // offsets [S+1] of the whole sequences, the same on every rank of cp. CPU tensors.
  ContextParallelAttention(nn::AttentionShape shape, std::vector<int64_t> offsets, const Communicator& cp, ContextSplit split);
  // q, k, v: the rows of this rank's pieces. Collective over cp, forward and backward.
  at::Tensor attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;

 private:
  struct Plan;
  std::shared_ptr<const Plan> plan_;
};

}  // namespace weft
