#include "weft/model/routing.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "weft/base/error.h"
#include "weft/nn/moe.h"

namespace weft {
namespace {

int64_t index_of(const RoutingBuffer& b, int64_t layer, int64_t rows, int64_t top_k) {
  const auto it = std::lower_bound(b.layers.begin(), b.layers.end(), static_cast<int32_t>(layer));
  WEFT_CHECK(it != b.layers.end() && *it == layer, "layer {} has no routing rows", layer);
  WEFT_CHECK(rows == b.rows && top_k == b.top_k, "layer {}: {} rows of {} experts routed, the buffer holds {} of {}", layer, rows, top_k, b.rows,
             b.top_k);
  return it - b.layers.begin();
}

}  // namespace

at::Tensor LiveRouting::route(int64_t, const at::Tensor& logits, const kernels::RouterParams& params) {
  return nn::router_select(logits, params);
}

RoutingBuffer RoutingBuffer::make(std::vector<int32_t> layers, int64_t rows, int64_t top_k) {
  RoutingBuffer b{std::move(layers), rows, top_k, {}};
  b.ids.assign(static_cast<size_t>(rows * top_k) * b.layers.size(), -1);
  return b;
}

at::Tensor RecordRouting::route(int64_t layer, const at::Tensor& logits, const kernels::RouterParams& params) {
  at::Tensor ids = nn::router_select(logits, params), host = ids.to(at::kCPU);
  const int64_t l = index_of(buffer_, layer, host.size(0), params.top_k);
  const int32_t* p = host.data_ptr<int32_t>();
  for (int64_t t = 0; t < buffer_.rows; ++t) std::copy_n(p + t * buffer_.top_k, buffer_.top_k, buffer_.at(t, l));
  return ids;
}

at::Tensor ReplayRouting::route(int64_t layer, const at::Tensor& logits, const kernels::RouterParams& params) {
  const int64_t l = index_of(buffer_, layer, logits.size(0), params.top_k);
  ++uses_[static_cast<size_t>(l)];
  at::Tensor ids = at::empty({buffer_.rows, buffer_.top_k}, at::TensorOptions().dtype(at::kInt));
  for (int64_t t = 0; t < buffer_.rows; ++t) std::copy_n(buffer_.at(t, l), buffer_.top_k, ids.data_ptr<int32_t>() + t * buffer_.top_k);
  return ids.to(logits.device());
}

void ReplayRouting::check_consumed() const {
  for (size_t l = 0; l < uses_.size(); ++l)
    WEFT_CHECK(uses_[l] == 1, "layer {}: its routing rows were used {} times in one forward", buffer_.layers[l], uses_[l]);
}

}  // namespace weft
