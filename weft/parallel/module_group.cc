#include "weft/parallel/module_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "weft/base/error.h"

namespace weft {

at::Tensor ModuleShard::local() {
  version_ = version();
  source_ = part_.detach();
  return source_.to(sealed_.full().scalar_type()).contiguous();
}

void ModuleShard::set_gathered(at::Tensor full) {
  gathered_ = full.defined();
  if (gathered_) return;
  source_ = at::Tensor();
  sealed_.seal();
  sealed_.release();
}

void ModuleShard::add_grad(const at::Tensor& part) {
  at::Tensor& grad = part_.mutable_grad();
  if (grad.defined())
    grad.add_(part);
  else
    grad = part.to(part_.scalar_type());
}

void ModuleShard::rename(const std::string& name, const std::string& group) {
  name_ = name;
  sealed_.set_message(fmt::format(
      "\"{}\" of the sharded module \"{}\" is not gathered here: call the module as weft::forward(module, ...) or through what "
      "fully_shard returned, and let it return every tensor that carries gradients",
      name, group));
}

void ModuleShard::add_full_grad(const at::Tensor& grad, bool keep) {
  const at::ScalarType sum = part_.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (grad_.defined()) grad_ = grad_.to(sum) + grad.to(sum);
  // Others may hold the same tensor, and write it once the backward has returned.
  else
    grad_ = keep ? grad.to(sum, false, /*copy=*/true) : grad;
}

namespace detail {

void ModuleGroup::add_shard(std::unique_ptr<ModuleShard> shard) {
  tensors_.push_back(shard.get());
  own_names.push_back(shard->name());
  shard->rename(shard->name(), name_);
  add(std::move(shard));
}

void ModuleGroup::rename(const std::string& path) {
  name_ = path;
  for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i]->rename(path + "." + own_names[i], path);
}

void ModuleGroup::open(const nn::NodePointer& parameters) {
  uint32_t output = 0;
  for (ModuleShard* t : tensors_)
    t->sealed().open(parameters && t->trainable() ? torch::autograd::Edge(parameters, output++) : torch::autograd::Edge());
}

void ModuleGroup::seal() {
  for (ModuleShard* t : tensors_) t->sealed().seal();
}

std::vector<int64_t> ModuleGroup::versions() const {
  std::vector<int64_t> out;
  for (const ModuleShard* t : tensors_) out.push_back(t->version());
  return out;
}

bool ModuleGroup::begin() {
  if (depth_++ > 0) return false;
  ++context_->running;
  gather_for_forward();
  if (at::GradMode::is_enabled()) {
    if (!context_->recording) context_->recording = std::make_shared<ModuleTape>();
    tape_ = context_->recording;
    const size_t opened = tape_->append(shared_from_this(), false);
    if (trainable()) {
      parameters_ = make_parameters_node(tape_, opened, shared_from_this());
      for (ModuleShard* t : tensors_)
        if (t->trainable()) (void)parameters_->add_input_metadata(t->full());
    }
  }
  open(parameters_);
  return true;
}

void ModuleGroup::end(const std::vector<at::Tensor*>& outputs) {
  for (at::Tensor* out : outputs) {
    if (!out->defined()) continue;
    if (output_dtype && out->is_floating_point()) *out = out->to(*output_dtype);
    for (ModuleShard* t : tensors_)
      if (out->has_storage() && out->storage().unsafeGetStorageImpl() == t->full().storage().unsafeGetStorageImpl())
        throw ValueError(
            fmt::format("the forward of \"{}\" returns its parameter {} or a view of it, which is given back: return a copy",
                        name_, t->name()));
  }
  if (tape_)
    add_gather_node(tape_, tape_->append(shared_from_this(), true), shared_from_this(), {parameters_, versions()}, outputs);
  seal();
  reshard_after_forward();
  --depth_;
  tape_.reset();
  parameters_ = nullptr;
  if (--context_->running == 0) context_->recording.reset();
}

void ModuleGroup::abandon() {
  if (--depth_ > 0) return;
  seal();
  tape_.reset();
  parameters_ = nullptr;
  if (--context_->running == 0) context_->recording.reset();
}

void ModuleGroup::open_in_backward(const Call& call) {
  if (call.versions != versions())
    throw ValueError(fmt::format("a parameter of \"{}\" was changed between its forward and its backward", name_));
  if (unshard_in_backward_) open(call.parameters);
}

void ModuleGroup::add_grads(const std::vector<at::Tensor>& grads) {
  size_t i = 0;
  for (ModuleShard* t : tensors_)
    if (t->trainable() && i < grads.size()) {
      if (grads[i].defined()) t->add_full_grad(grads[i], !sync_);
      ++i;
    }
}

void ModuleGroup::close_in_backward() {
  seal();
  if (trainable())
    finish_backward();
  else if (reshard_after_backward_)
    reshard();
}

void ModuleGroup::end_backward(ShardContext& context) {
  for (ShardGroup* group : context.groups) {
    auto* g = static_cast<ModuleGroup*>(group);
    if (g->reshard_after_backward_) g->reshard();
  }
  finish_last_reduce(context);
}

}  // namespace detail
}  // namespace weft
