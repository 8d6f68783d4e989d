#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "weft/base/error.h"
#include "weft/parallel/module_group.h"

namespace weft {
namespace {

using detail::ModuleGroup;
using torch::autograd::variable_list;

// Takes the gradients of a call's parameters: the last node of the call.
class ParametersNode : public torch::autograd::Node {
 public:
  ParametersNode(std::shared_ptr<ModuleTape> tape, size_t opened, std::shared_ptr<ModuleGroup> group)
      : tape_(std::move(tape)), opened_(opened), group_(std::move(group)) {}
  std::string name() const override { return "weft_parameters"; }

 private:
  variable_list apply(variable_list&& grads) override {
    at::NoGradGuard guard;
    tape_->reach(opened_);
    group_->add_grads(grads);
    grads.clear();
    group_->close_in_backward();
    return {};
  }
  std::shared_ptr<ModuleTape> tape_;
  size_t opened_;
  std::shared_ptr<ModuleGroup> group_;
};

// Passes gradients on, once the parameters are there: the first node of the call.
class GatherNode : public torch::autograd::Node {
 public:
  GatherNode(std::shared_ptr<ModuleTape> tape, size_t closed, std::shared_ptr<ModuleGroup> group, ModuleGroup::Call call)
      : tape_(std::move(tape)), closed_(closed), group_(std::move(group)), call_(std::move(call)) {}
  std::string name() const override { return "weft_gather"; }

 private:
  variable_list apply(variable_list&& grads) override {
    at::NoGradGuard guard;
    tape_->reach(closed_);
    group_->gather_in_backward(tape_->next_gather());
    group_->open_in_backward(call_);
    return std::move(grads);
  }
  std::shared_ptr<ModuleTape> tape_;
  size_t closed_;
  std::shared_ptr<ModuleGroup> group_;
  ModuleGroup::Call call_;
};

void end_of_backward(ShardContext& context) {
  context.end_registered = false;
  for (const std::shared_ptr<ModuleTape>& tape : std::exchange(context.reached, {})) tape->finish();
  ModuleGroup::end_backward(context);
}

}  // namespace

size_t ModuleTape::append(std::shared_ptr<ModuleGroup> group, bool closed) {
  events_.push_back({std::move(group), closed});
  return events_.size() - 1;
}

void ModuleTape::reach(size_t at) {
  if (!position_) {
    const std::shared_ptr<ShardContext> context = events_[at].group->shared_context();
    // An older forward's turn comes when a younger one's is over.
    for (const std::shared_ptr<ModuleTape>& tape : context->reached) tape->finish();
    context->reached.push_back(shared_from_this());
    if (!std::exchange(context->end_registered, true))
      torch::autograd::Engine::get_default_engine().queue_callback([context] { end_of_backward(*context); });
    position_ = events_.size();
  }
  WEFT_CHECK(at < *position_, "\"{}\" is reached twice in one backward", events_[at].group->name());
  while (*position_ > at + 1) run_skipped();
  position_ = at;
}

void ModuleTape::run_skipped() {
  const Event& event = events_[--*position_];
  if (event.closed)
    event.group->gather_in_backward(next_gather());
  else
    event.group->close_in_backward();
}

void ModuleTape::finish() {
  while (position_.value_or(0) > 0) run_skipped();
  position_.reset();
}

ModuleGroup* ModuleTape::next_gather() const {
  for (size_t i = *position_; i-- > 0;)
    if (events_[i].closed) return events_[i].group.get();
  return nullptr;
}

nn::NodePointer make_parameters_node(std::shared_ptr<ModuleTape> tape, size_t opened, std::shared_ptr<ModuleGroup> group) {
  return nn::make_node<ParametersNode>(std::move(tape), opened, std::move(group));
}

void add_gather_node(std::shared_ptr<ModuleTape> tape, size_t closed, std::shared_ptr<ModuleGroup> group, ModuleGroup::Call call,
                     const std::vector<at::Tensor*>& outputs) {
  auto node = nn::make_node<GatherNode>(std::move(tape), closed, std::move(group), std::move(call));
  torch::autograd::edge_list edges;
  std::vector<at::Tensor*> carried;
  for (at::Tensor* out : outputs)
    if (out->defined() && out->requires_grad())
      carried.push_back(out), edges.push_back(torch::autograd::impl::gradient_edge(*out));
  node->set_next_edges(std::move(edges));
  for (at::Tensor* out : carried) {
    *out = out->detach();  // shares memory and version with what the module computed
    torch::autograd::set_history(*out, node);
  }
}

}  // namespace weft
