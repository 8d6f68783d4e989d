#include "weft/nn/parameter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "weft/base/error.h"
#include "weft/nn/arena_tensor.h"
#include "weft/nn/view.h"

namespace weft::nn {

Parameter::Parameter(std::string name, std::vector<int64_t> shape, Precision precision)
    : name_(std::move(name)), shape_(std::move(shape)), precision_(precision) {
  for (int64_t s : shape_) numel_ *= s;
  compute_shape_ = local_shape_ = shape_;
}

void Parameter::shard(std::vector<int64_t> compute_shape, std::vector<int64_t> local_shape, ShardOwner* owner) {
  WEFT_CHECK(!materialized() && !owner_, "{} is sharded twice, or after it was materialized", name_);
  compute_shape_ = std::move(compute_shape);
  local_shape_ = std::move(local_shape);
  owner_ = owner;
}

void Parameter::cut(std::vector<int64_t> local_shape) {
  WEFT_CHECK(!materialized() && !owner_, "{} is cut after it was sharded or materialized", name_);
  compute_shape_ = local_shape_ = std::move(local_shape);
}

void Parameter::set_memory(ParameterMemory memory) {
  WEFT_CHECK(!materialized(), "{} has memory already", name_);
  memory_ = std::move(memory);
  if (memory_.panels && !owner_) packed_.set_arena(memory_.panels);
}

void Parameter::freeze(const at::Device& device, at::ScalarType param_dtype, at::Tensor values, std::shared_ptr<Arena> arena) {
  param_dtype_ = compute_dtype(param_dtype);
  if (values.defined())
    memory_.weights = std::move(arena);
  else
    values = allocate(memory_.weights, param_dtype_, device);
  WEFT_CHECK(values.scalar_type() == param_dtype_, "{}: other values", name_);
  keep_frozen(std::move(values), {});
}

void Parameter::freeze_int8(const at::Device& device, at::ScalarType param_dtype, at::Tensor values, at::Tensor scales,
                            std::shared_ptr<Arena> arena) {
  WEFT_CHECK(dim() >= 2 && values.defined() == scales.defined(), "{}: int8 is for weights of products, with scales", name_);
  param_dtype_ = compute_dtype(param_dtype);
  const std::vector<int64_t> rows(local_shape_.begin(), local_shape_.end() - 1);
  if (values.defined()) {
    memory_.weights = std::move(arena);
  } else {
    values = allocate(memory_.weights, at::kChar, device);
    scales = device.is_cpu() ? arena_tensor(memory_.weights, rows, at::kFloat)
                             : at::empty(rows, at::TensorOptions().dtype(at::kFloat).device(device));
  }
  WEFT_CHECK(values.scalar_type() == at::kChar && scales.sizes() == at::IntArrayRef(rows), "{}: other values", name_);
  keep_frozen(std::move(values), std::move(scales));
}

void Parameter::keep_frozen(at::Tensor values, at::Tensor scales) {
  WEFT_CHECK(!owner_, "{} is sharded: it cannot be frozen", name_);
  WEFT_CHECK(values.sizes() == at::IntArrayRef(local_shape_), "{}: other values", name_);
  trainable_ = false;
  master_ = at::Tensor();
  compute_ = std::move(values);
  row_scales_ = std::move(scales);
  packed_.clear();
}

void Parameter::set_gathered(at::Tensor full) {
  gathered_ = std::move(full);
  packed_.clear();
}

at::Tensor Parameter::take_full_grad() { return std::exchange(full_grad_, at::Tensor()); }

const at::Tensor& Parameter::compute() {
  if (!owner_) {
    require_weights();
    return compute_;
  }
  if (!gathered_.defined()) owner_->gather(*this);
  WEFT_CHECK(gathered_.defined(), "{} was not gathered", name_);
  return gathered_;
}

at::Tensor Parameter::allocate(const std::shared_ptr<Arena>& arena, at::ScalarType dtype, const at::Device& device) const {
  if (device.is_cpu()) return arena_tensor(arena, local_shape_, dtype);
  return at::empty(local_shape_, at::TensorOptions().dtype(dtype).device(device));
}

void Parameter::materialize(const at::Device& device, at::ScalarType param_dtype) {
  at::NoGradGuard guard;
  param_dtype_ = compute_dtype(param_dtype);
  master_ = allocate(memory_.weights, at::kFloat, device);
  compute_ = param_dtype_ == at::kFloat ? master_ : allocate(memory_.weights, param_dtype_, device);
}

void Parameter::updated() {
  at::NoGradGuard guard;
  if (param_dtype_ == at::kBFloat16 && master_.is_cpu())
    kernels::convert(master_.data_ptr<float>(), static_cast<bf16*>(compute_.data_ptr()), master_.numel());
  else if (param_dtype_ != at::kFloat)
    compute_.copy_(master_);
  gathered_ = at::Tensor();
  packed_.clear();
}

const kernels::PackedWeight& Parameter::packed() {
  if (packed_.empty() || packed_.packed_for() != kernels::active_target()) {
    const std::vector<int64_t>& s = compute_shape_;
    const size_t d = s.size();
    WEFT_CHECK(d == 2 || d == 3, "{}: packing needs 2 or 3 dims", name_);
    const at::Tensor& w = compute();
    if (row_scales_.defined())
      packed_.pack(w.data_ptr<int8_t>(), row_scales_.data_ptr<float>(), d == 3 ? s[0] : 1, s[d - 2], s[d - 1]);
    else
      packed_.pack(w.data_ptr(), dtype_of(w), d == 3 ? s[0] : 1, s[d - 2], s[d - 1]);
  }
  return packed_;
}

at::Tensor& Parameter::mutable_grad() {
  if (memory_.gradients) memory_.gradients->require();
  if (!grad_.defined()) {
    grad_ = allocate(memory_.gradients, at::kFloat, master_.device());
    grad_.zero_();
  }
  return grad_;
}

at::Tensor& Parameter::full_grad() {
  if (!owner_) return mutable_grad();
  if (!full_grad_.defined())
    full_grad_ = at::zeros(compute_shape_, at::TensorOptions().dtype(at::kFloat).device(master_.device()));
  return full_grad_;
}

float* Parameter::grad_data() { return full_grad().data_ptr<float>(); }

void Parameter::expect_grad() {
  if (owner_) owner_->grad_expected(*this);
}

void Parameter::add_grad(const at::Tensor& g) {
  at::NoGradGuard guard;
  full_grad().add_(g.to(at::kFloat));
  notify_grad();
}

void Parameter::zero_grad() {
  if (grad_.defined()) mutable_grad().zero_();
}

void Parameter::notify_grad() {
  for (auto& hook : grad_hooks_) hook(*this);
  if (owner_) owner_->grad_added(*this);
}

at::Tensor Parameter::leaf() {
  at::Tensor t = compute().detach();
  if (row_scales_.defined()) return t.to(at::kFloat).mul_(row_scales_.unsqueeze(-1)).to(param_dtype_);
  if (!trainable_ || !at::GradMode::is_enabled()) return t;
  expect_grad();
  t.set_requires_grad(true);
  t.register_hook([this](const at::Tensor& g) { add_grad(g); });
  return t;
}

}  // namespace weft::nn
