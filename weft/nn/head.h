#pragma once
// LM head fused with the log-probability of given tokens: never holds [rows, vocabulary], nor in the backward.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "weft/kernels/logprob.h"
#include "weft/nn/parameter.h"

namespace weft::nn {

// What each of the R rows asks for; owns what the kernel's rows point to.
struct HeadRows {
  std::vector<kernels::HeadRow> rows;
  std::vector<std::shared_ptr<const void>> owners;
};

struct HeadOutput {
  at::Tensor log_probs;  // [R] fp32
  at::Tensor entropy;    // [R] fp32, in nats, over the kept tokens; undefined unless asked for
};

// x [R, H] in param_dtype. Differentiable in x, the weight, and (through entropy) both.
HeadOutput head_log_probs(const at::Tensor& x, Parameter& weight, std::shared_ptr<const HeadRows> rows, bool want_entropy);

}  // namespace weft::nn
