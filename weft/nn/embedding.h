#pragma once
// Rows of a table: ids [T] int32 -> [T, H] fp32 (the residual stream; a bf16 table is widened).

#include <ATen/core/Tensor.h>

#include "weft/nn/parameter.h"

namespace weft::nn {

// ids are on the CPU, whatever the table's device, and must lie in [0, V): ValueError with the position of the first that does not.
at::Tensor embedding(const at::Tensor& ids, Parameter& table);

}  // namespace weft::nn
