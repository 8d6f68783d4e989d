#pragma once
// The routed part of a MoE layer whose experts lie on the ranks of an ep axis: rows travel to their experts' rank and back.
// Legend: T tokens of this rank, E experts of the model, k slots, H hidden.

#include <ATen/core/Tensor.h>

#include "weft/comm/communicator.h"
#include "weft/nn/parameter.h"

namespace weft {

// As nn::moe_experts, with gate_up and down holding this rank's experts: ceil chunks of E over `ep` (docs/sharding.md). Collective over
// ep, forward and backward, also with T = 0. The same bits as on one rank: an expert's output of a row depends on that row alone, and
// slots are summed at home. For each (token, slot) whose expert is elsewhere H elements in x's dtype travel there ("dispatch") and back
// ("combine"), in the backward likewise; besides, one int64 for each of E ("dispatch_counts"). x on the CPU.
at::Tensor moe_experts(const at::Tensor& x, const at::Tensor& gates, const at::Tensor& ids, nn::Parameter& gate_up, nn::Parameter& down,
                       const Communicator& ep);

}  // namespace weft
