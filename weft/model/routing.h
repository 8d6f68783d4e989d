#pragma once
// Who chooses the experts of each token: the live router, a recorder beside it, or a replayed trace (docs/replay.md).
// The MoE layer asks for ids by (global layer id, live logits); gates always come from the live logits.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "weft/kernels/moe.h"

namespace weft {

class Routing {
 public:
  virtual ~Routing() = default;
  // ids [T, k] int32 for the T rows of this forward. `layer` is the global layer id. Called once a layer and forward, and again with
  // the same rows when activations are recomputed.
  virtual at::Tensor route(int64_t layer, const at::Tensor& logits, const kernels::RouterParams& params) = 0;
};

// Live selection, nothing kept.
class LiveRouting : public Routing {
 public:
  at::Tensor route(int64_t layer, const at::Tensor& logits, const kernels::RouterParams& params) override;
};

// The choices of one forward: ids of row t in MoE layer l (index into `layers`) at ids[(t*L + l)*k].
struct RoutingBuffer {
  std::vector<int32_t> layers;  // global layer ids, ascending
  int64_t rows = 0, top_k = 0;
  std::vector<int32_t> ids;

  static RoutingBuffer make(std::vector<int32_t> layers, int64_t rows, int64_t top_k);
  int32_t* at(int64_t row, int64_t layer) { return ids.data() + (row * static_cast<int64_t>(layers.size()) + layer) * top_k; }
  const int32_t* at(int64_t row, int64_t layer) const { return ids.data() + (row * static_cast<int64_t>(layers.size()) + layer) * top_k; }
};

// Live selection, written to a buffer by row and layer (so that a recompute writes the same again).
class RecordRouting : public Routing {
 public:
  explicit RecordRouting(RoutingBuffer& buffer) : buffer_(buffer) {}
  at::Tensor route(int64_t layer, const at::Tensor& logits, const kernels::RouterParams& params) override;

 private:
  RoutingBuffer& buffer_;
};

// The buffer's choices; the live ones are not computed.
class ReplayRouting : public Routing {
 public:
  explicit ReplayRouting(const RoutingBuffer& buffer) : buffer_(buffer), uses_(buffer.layers.size(), 0) {}
  at::Tensor route(int64_t layer, const at::Tensor& logits, const kernels::RouterParams& params) override;
  // After a forward, before its backward: every row of every layer was used exactly once, else an InternalError that names the layer.
  void check_consumed() const;

 private:
  const RoutingBuffer& buffer_;
  std::vector<int> uses_;
};

}  // namespace weft
