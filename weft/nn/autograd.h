#pragma once
// One way to make an op differentiable: compute outputs with kernels, then record a backward over plain tensors.
//
//   at::Tensor y = ...kernel...;
//   return record({x}, {&w}, y, [=](const Grads& dy) -> Grads { ...; return {dx}; });
//
// Weight gradients are added to Parameter::grad() inside the backward (fp32, never through a leaf). The graph lives in libtorch.

#include <ATen/core/Tensor.h>

#include <functional>
#include <initializer_list>
#include <vector>

#include "weft/nn/parameter.h"

namespace weft::nn {

using Grads = std::vector<at::Tensor>;
// From the outputs' gradients (undefined where an output had none) to the inputs' gradients (undefined where none is needed).
using Backward = std::function<Grads(const Grads&)>;

// Whether a graph is being recorded for these inputs and parameters.
bool needs_grad(std::initializer_list<at::Tensor> inputs, std::initializer_list<Parameter*> params);

// Attaches `backward` to the outputs when needs_grad. The backward runs once; what it captured is freed after it. An output that it
// needs is captured detached. Outputs are returned for convenience.
std::vector<at::Tensor> record(std::initializer_list<at::Tensor> inputs, std::initializer_list<Parameter*> params,
                               std::vector<at::Tensor> outputs, Backward backward);
at::Tensor record(std::initializer_list<at::Tensor> inputs, std::initializer_list<Parameter*> params, at::Tensor output,
                  Backward backward);

// Activation recompute: runs fn without a graph, and again with one inside the backward. fn must be deterministic (ours are), so
// gradients have the same bits as without. Everything fn refers to must live until the backward has run.
at::Tensor recompute(const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> fn);

// Runs the graph behind `roots` with these gradients: the one entry to libtorch's engine.
void backward(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& grads);
// Whether this thread is inside it (then a forward is a recompute), and what shall run when it has ended without an error.
bool in_backward();
void at_backward_end(std::function<void()> fn);

// Kernels run on CPU tensors, ATen compositions elsewhere. The named ops run their compositions on the CPU too: the second oracle of
// each kernel, and a trainer whose order of sums is another in the tests of parity.
enum Op : unsigned {
  kNoOp = 0,
  kLinearOp = 1,
  kNormOp = 2,
  kRopeOp = 4,
  kAttentionOp = 8,
  kActivationOp = 16,
  kRouterOp = 32,
  kExpertsOp = 64,
  kHeadOp = 128,
  kEmbeddingOp = 256,
  kEveryOp = 511
};
void force_compositions(unsigned ops);
bool use_kernels(const at::Tensor& t, Op op);

}  // namespace weft::nn
