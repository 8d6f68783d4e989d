#pragma once
// `weft check`: a checkpoint against golden.safetensors beside it, made with transformers (tools/make_golden.py).
//
// Golden tensors: input_ids [B, S] int64; logits [B, S, V]; logprobs [B, S-1]; loss []; grad/<name on disk>; for MoE layer i
// router_logits/i [B*S, E] (logits or softmax scores), router_topk/i [B*S, k], router_weights/i [B*S, k]; greedy [1, n] (7 prompt
// tokens first, one more at least); noise/{logits,logprobs,grad} []: the reference's own fp32 error against fp64. Tolerances
// (fp32): logits, log-probs, gates 2e-5 absolute, loss as log-probs; gradients 1e-4 of the tensor's largest entry and zero where
// the golden is zero; four times the noise where that is larger. Choices and tokens are equal. What is not finite fails, in the
// golden or here. Other tensors in the golden, and a noise that is no finite number from 0 on, are errors.

#include <string>
#include <vector>

#include "weft/train/loaded_model.h"

namespace weft {

struct CheckRow {
  std::string field;
  double difference =
      0;  // largest; for gradients relative to the tensor's largest entry; for choices and tokens the number that differ
  double tolerance = 0;
  bool ok = false;
};

struct CheckReport {
  std::vector<CheckRow> rows;
  std::vector<std::string> not_compared;  // fields that the golden lacks
  bool ok() const;
  // A table of the largest differences, gradients summed up to the worst few unless `all`.
  std::string table(bool all) const;
};

struct CheckOptions {
  double logits_tolerance = 2e-5, gradient_tolerance = 1e-4;
  bool exact_choices = true;  // in bf16 a near tie may fall the other way
};

// What --param-dtype bfloat16 is held to against fp32 goldens: bounds measured over the goldens and doubled (docs/numerics.md).
CheckOptions bf16_check_options();

// Of a model on a mesh all its ranks call, and get the same report: each holds what it has to the golden.
CheckReport check_model(LoadedModel& m, const std::string& golden_path, const CheckOptions& options = {});

}  // namespace weft
