#include "weft/parallel/sealed_tensor.h"

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "weft/base/error.h"
#include "weft/nn/torch_compat.h"

namespace weft {
namespace {

// A key above autograd and every backend that nothing but tests of libtorch itself uses.
constexpr c10::DispatchKey kSealed = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

std::string message_in(const c10::IValue& value) {
  if (value.isTensor()) return SealedTensor::is_sealed(value.toTensor()) ? value.toTensor().name() : "";
  if (value.isTensorList())
    for (const at::Tensor& t : value.toTensorVector())
      if (SealedTensor::is_sealed(t)) return t.name();
  return "a parameter is sharded here";
}

void refuse(const c10::OperatorHandle& op, c10::Stack* stack) {
  std::string message;
  for (const c10::IValue& value : *stack)
    if (message.empty() && (value.isTensor() || value.isTensorList())) message = message_in(value);
  throw ValueError(op.schema().name() + ": " + message);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
}

// A graph that saved the opened tensor insists that it comes from somewhere, also when it only asks for its shape. (And
// optimizers refuse tensors that do.)
class RefusedNode : public torch::autograd::Node {
 public:
  explicit RefusedNode(const at::Tensor& tensor) { (void)add_input_metadata(tensor); }
  std::string name() const override { return "weft_sealed"; }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    throw ValueError("a gradient of a sharded parameter from outside of its module's forward");
  }
};

c10::StorageImpl* storage_of(const at::Tensor& t) { return t.storage().unsafeGetStorageImpl(); }

}  // namespace

SealedTensor::SealedTensor(at::Tensor tensor, at::ScalarType dtype) : tensor_(std::move(tensor)) {
  at::NoGradGuard guard;
  full_ = at::empty(tensor_.sizes(), tensor_.options().dtype(dtype).requires_grad(false));
  release();
  auto sealed =
      c10::make_intrusive<at::TensorImpl>(c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::GetCPUAllocator(), true),
                                          c10::DispatchKeySet(c10::DispatchKey::CPU).add(kSealed), tensor_.dtype());
  sealed->set_sizes_contiguous(tensor_.sizes());
  sealed_ = at::Tensor(std::move(sealed));
  tensor_.set_requires_grad(false);
  if (tensor_.is_floating_point()) refused_ = torch::autograd::Edge(nn::make_node<RefusedNode>(full_), 0);
  seal();
}

void SealedTensor::set_message(const std::string& message) { torch::autograd::impl::set_name(tensor_, message); }

at::Tensor SealedTensor::allocate() {
  const size_t bytes = static_cast<size_t>(full_.numel()) * full_.element_size();
  if (storage_of(full_)->nbytes() == bytes) return full_;
  storage_of(full_)->set_data_ptr(c10::GetCPUAllocator()->allocate(bytes));
  storage_of(full_)->set_nbytes(bytes);
  return full_;
}

void SealedTensor::release() {
  storage_of(full_)->set_nbytes(size_t{0});
  storage_of(full_)->set_data_ptr(at::DataPtr(nullptr, at::Device(at::kCPU)));
}

void SealedTensor::open(const torch::autograd::Edge& edge) {
  tensor_.unsafeGetTensorImpl()->shallow_copy_from(full_.getIntrusivePtr());
  torch::autograd::impl::set_gradient_edge(tensor_, edge);
}

void SealedTensor::seal() {
  tensor_.unsafeGetTensorImpl()->shallow_copy_from(sealed_.getIntrusivePtr());
  torch::autograd::impl::set_gradient_edge(tensor_, refused_);
}

bool SealedTensor::is_sealed(const at::Tensor& t) { return t.defined() && t.key_set().has(kSealed); }

}  // namespace weft
