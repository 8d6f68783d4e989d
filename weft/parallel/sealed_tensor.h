#pragma once
// A module's parameter whose values are elsewhere: the tensor that the module's members hold is sealed (no operation accepts it,
// not even without gradients) or opened (it is the gathered parameter). The switch keeps the tensor's identity, which members,
// views and graphs refer to.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <string>

namespace weft {

class SealedTensor {
 public:
  // Seals `tensor`, a leaf on the CPU. `full` (of its shape, in the dtype of opened reads) has no memory while it is not
  // gathered.
  SealedTensor(at::Tensor tensor, at::ScalarType dtype);

  const at::Tensor& tensor() const { return tensor_; }
  // What an operation on the sealed tensor throws (ValueError), after "aten::mul: ".
  void set_message(const std::string& message);

  // Memory of `full`. Graphs keep views of it, which see what is gathered next: the storage stays, its bytes go.
  at::Tensor allocate();
  void release();
  const at::Tensor& full() const { return full_; }

  // Reads see `full`; their gradients go to `edge` (none: not recorded).
  void open(const torch::autograd::Edge& edge);
  void seal();
  static bool is_sealed(const at::Tensor& t);

 private:
  at::Tensor tensor_, full_, sealed_;
  torch::autograd::Edge refused_;  // where the sealed tensor claims to come from
};

}  // namespace weft
