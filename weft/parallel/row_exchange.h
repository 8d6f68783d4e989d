#pragma once
// Rows that travel between the ranks of an axis.

#include <ATen/core/Tensor.h>

#include <vector>

#include "weft/comm/communicator.h"

namespace weft {

// rows [sum of send, H] (fp32 or bf16, on the CPU), those for rank 0 first -> [sum of receive, H], those from rank 0 first. The gradient
// takes the way back. Collective, forward and backward.
at::Tensor exchange_rows(const at::Tensor& rows, const std::vector<int64_t>& send, const std::vector<int64_t>& receive, const Communicator& axis,
                         const char* purpose);

}  // namespace weft
