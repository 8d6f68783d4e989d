#include "weft/model/token_batch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "weft/base/error.h"

namespace weft {

TokenBatch TokenBatch::pack(std::span<const SequenceSpan> sequences, int64_t history) {
  TokenBatch b;
  b.offsets = {0};
  for (const SequenceSpan& s : sequences) {
    WEFT_CHECK(0 <= s.begin && s.begin <= s.end && s.end <= static_cast<int64_t>(s.tokens.size()), "span [{}, {}) of {} tokens",
               s.begin, s.end, s.tokens.size());
    b.offsets.push_back(b.offsets.back() + s.end - s.begin);
  }
  const auto options = at::TensorOptions().dtype(at::kInt);
  const int64_t total = b.offsets.back();
  b.ids = at::empty({total}, options);
  b.positions = at::empty({total}, options);
  if (history > 0) b.history = at::zeros({total, history}, options);
  int32_t *ids = b.ids.data_ptr<int32_t>(), *positions = b.positions.data_ptr<int32_t>();
  int64_t row = 0;
  for (const SequenceSpan& s : sequences)
    for (int64_t p = s.begin; p < s.end; ++p, ++row) {
      ids[row] = s.tokens[static_cast<size_t>(p)];
      positions[row] = static_cast<int32_t>(p);
      for (int64_t d = 1; d <= history && d <= p; ++d)
        b.history.data_ptr<int32_t>()[row * history + d - 1] = s.tokens[static_cast<size_t>(p - d)];
    }
  return b;
}

}  // namespace weft
