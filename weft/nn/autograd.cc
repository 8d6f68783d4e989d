#include "weft/nn/autograd.h"

#include <ATen/core/grad_mode.h>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <atomic>

#include "weft/base/error.h"
#include "weft/nn/torch_compat.h"

namespace weft::nn {
namespace {

class BackwardNode : public torch::autograd::Node {
 public:
  explicit BackwardNode(Backward fn) : fn_(std::move(fn)) {}
  std::string name() const override { return "weft"; }
  void release_variables() override { fn_ = nullptr; }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    WEFT_CHECK(fn_, "backward ran twice through one graph");
    at::NoGradGuard guard;
    Grads out = fn_(Grads(grads.begin(), grads.end()));
    // Backwards may list fewer inputs than were passed when the last ones have no gradient.
    out.resize(num_outputs());
    return torch::autograd::variable_list(out.begin(), out.end());
  }
  Backward fn_;
};

std::atomic<unsigned> composed_ops{kNoOp};

// libtorch runs the backward of CPU tensors in the thread that asks for it.
thread_local bool backward_runs = false;
thread_local std::vector<std::function<void()>> at_end;

struct BackwardScope {
  BackwardScope() {
    WEFT_CHECK(!backward_runs, "a backward inside a backward");
    backward_runs = true;
  }
  ~BackwardScope() {
    backward_runs = false;
    at_end.clear();
  }
};

}  // namespace

bool needs_grad(std::initializer_list<at::Tensor> inputs, std::initializer_list<Parameter*> params) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor& t : inputs)
    if (t.defined() && t.requires_grad()) return true;
  for (const Parameter* p : params)
    if (p && p->trainable()) return true;
  return false;
}

std::vector<at::Tensor> record(std::initializer_list<at::Tensor> inputs, std::initializer_list<Parameter*> params,
                               std::vector<at::Tensor> outputs, Backward backward) {
  if (!needs_grad(inputs, params)) return outputs;
  for (Parameter* p : params)
    if (p && p->trainable()) p->expect_grad();
  auto node = make_node<BackwardNode>(std::move(backward));
  torch::autograd::edge_list edges;
  for (const at::Tensor& t : inputs)
    edges.push_back(t.defined() && t.requires_grad() ? torch::autograd::impl::gradient_edge(t) : torch::autograd::Edge());
  node->set_next_edges(std::move(edges));
  for (at::Tensor& t : outputs) torch::autograd::set_history(t, node);
  return outputs;
}

at::Tensor record(std::initializer_list<at::Tensor> inputs, std::initializer_list<Parameter*> params, at::Tensor output,
                  Backward backward) {
  return record(inputs, params, std::vector<at::Tensor>{std::move(output)}, std::move(backward))[0];
}

at::Tensor recompute(const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> fn) {
  if (!at::GradMode::is_enabled()) return fn(x);
  at::Tensor y;
  {
    at::NoGradGuard guard;
    y = fn(x);
  }
  // Recorded even when x needs no gradient: the parameters inside fn do, and only fn knows them.
  auto node = make_node<BackwardNode>([x, fn](const Grads& dy) -> Grads {
    at::AutoGradMode on(true);
    at::Tensor leaf = x.detach();
    leaf.set_requires_grad(x.requires_grad());
    at::Tensor again = fn(leaf);
    if (!again.requires_grad()) return {at::Tensor()};  // everything inside is frozen
    torch::autograd::backward({again}, {dy[0]});
    return {x.requires_grad() ? leaf.grad() : at::Tensor()};
  });
  node->set_next_edges({x.requires_grad() ? torch::autograd::impl::gradient_edge(x) : torch::autograd::Edge()});
  torch::autograd::set_history(y, node);
  return y;
}

void backward(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& grads) {
  BackwardScope scope;
  torch::autograd::backward(roots, grads);
  for (size_t i = 0; i < at_end.size(); ++i) at_end[i]();
}

bool in_backward() { return backward_runs; }

void at_backward_end(std::function<void()> fn) {
  WEFT_CHECK(backward_runs, "no backward is running");
  at_end.push_back(std::move(fn));
}

void force_compositions(unsigned ops) { composed_ops = ops; }
bool use_kernels(const at::Tensor& t, Op op) { return t.is_cpu() && !(composed_ops & op); }

}  // namespace weft::nn
