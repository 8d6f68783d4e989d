#pragma once
// Embedding and LM head cut by vocabulary over the ranks of an axis, at whole leaves (docs/numerics.md, rule 4).
// Legend: T tokens, R rows, V vocabulary, H hidden.

#include <ATen/core/Tensor.h>

#include <memory>

#include "weft/comm/communicator.h"
#include "weft/nn/head.h"
#include "weft/nn/parameter.h"

namespace weft {

// As nn::embedding; `table` holds this rank's rows of [V, H]. Every rank of tp gives the same ids. Collective.
at::Tensor vocab_embedding(const at::Tensor& ids, nn::Parameter& table, const Communicator& tp);

// As nn::head_log_probs; `weight` holds this rank's rows of [V, H]. Every rank of tp gives the same x and rows, and gets the same
// result, with the bits of one rank. Never holds [R, V / tp]. Collective, forward and backward.
nn::HeadOutput vocab_log_probs(const at::Tensor& x, nn::Parameter& weight, std::shared_ptr<const nn::HeadRows> rows,
                               bool want_entropy, const Communicator& tp);

// Logits [R, V] fp32 of every row on every rank, without gradients: the bits of one rank's. x and weight as above. Collective.
at::Tensor vocab_logits(const at::Tensor& x, nn::Parameter& weight, const Communicator& tp);

// As nn::embedding; `table` holds this rank's chunk of the rows and every rank of the axis its own ids: they travel to the rows'
// ranks and the rows back, their gradients likewise. Collective.
at::Tensor exchanged_embedding(const at::Tensor& ids, nn::Parameter& table, const Communicator& axis);

}  // namespace weft
