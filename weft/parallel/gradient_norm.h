#pragma once
// The norm of all gradients of a sharded model.
//
// Every parameter counts once: parts are joined over the ranks of a replica, copies (of the replicate axis, of tp, of parameters
// that are not sharded) count on the first of their ranks. In double: a parameter's own part first (sums of squares as
// kernels::sum_of_squares), then over ranks in the communicator's tree, then over parameters in their order. So all ranks have
// the same bits and a run repeats itself; against one rank the order of additions in double differs (p = 1, 2), or nothing does
// (p = infinity).

#include <ATen/core/Tensor.h>

#include <vector>

#include "weft/nn/parameter.h"
#include "weft/parallel/rank_mesh.h"

namespace torch::nn {
class Module;
}

namespace weft {

struct GradientPart {
  at::Tensor grad;      // this rank's part; undefined counts as zero: nothing there, or a copy of an earlier rank's
  bool sharded = true;  // else every rank has all of it
};

// (sum |g|^p)^(1/p); p > 0, infinity: the largest |g| (ValueError else). Not finite where a gradient is not. Collective: the same
// parts in the same order on every rank.
double gradient_norm(const std::vector<GradientPart>& parts, double p, const RankMesh& mesh);
// Of the trainable ones.
double gradient_norm(const std::vector<nn::Parameter*>& parameters, double p, const RankMesh& mesh);
// Of a sharded libtorch module (sharded_module.h): what named_parameters() holds.
double gradient_norm(torch::nn::Module& module, double p, const RankMesh& mesh);

}  // namespace weft
