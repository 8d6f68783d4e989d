#pragma once
// A parameter: fp32 master, the copy that forward reads, an fp32 gradient buffer of ours, and the packed form that kernels read.

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "weft/kernels/gemm.h"

namespace weft::nn {

// Which parameters `param_dtype = bfloat16` rounds (docs/numerics.md, rule 7): projections, experts, embedding tables and the head;
// routers, norms and biases stay fp32.
enum class Precision { kParamDtype, kFp32 };

class Parameter {
 public:
  Parameter(std::string name, std::vector<int64_t> shape, Precision precision);
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  // Full name: as on disk for everything but stacked experts ("model.layers.0.mlp.experts.gate_up_proj").
  const std::string& name() const { return name_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t numel() const { return numel_; }
  int64_t dim() const { return static_cast<int64_t>(shape_.size()); }

  // Allocates the master (uninitialised, fp32) on `device` and chooses the dtype that forward reads.
  void materialize(const at::Device& device, at::ScalarType param_dtype);
  bool materialized() const { return master_.defined(); }

  // fp32 [shape]. Whoever writes it calls updated() afterwards.
  const at::Tensor& master() const { return master_; }
  // What forward reads: the master itself in fp32, else its copy rounded to param_dtype.
  const at::Tensor& compute() const { return compute_; }
  at::ScalarType param_dtype() const { return param_dtype_; }
  // Refreshes the compute copy and drops the packed form.
  void updated();

  // The panels of the forward product; 2-D [N, K] or stacked [E, N, K]. Built on first use after a change, on the caller's thread.
  const kernels::PackedWeight& packed();

  bool trainable() const { return trainable_; }
  void set_trainable(bool on) { trainable_ = on; }

  // The fp32 gradient buffer: allocated and zero on first use, summed into by backward, never rounded. Undefined until then.
  const at::Tensor& grad() const { return grad_; }
  at::Tensor& mutable_grad();
  float* grad_data();  // CPU only
  void add_grad(const at::Tensor& g);
  void zero_grad();

  // Called by ops when one backward contribution has been added to grad(); sharding hangs its reductions here.
  void add_grad_hook(std::function<void(Parameter&)> hook) { grad_hooks_.push_back(std::move(hook)); }
  void notify_grad();

  // A leaf for ATen compositions (other devices): its gradient is added to grad() in fp32 by a hook.
  at::Tensor leaf();

 private:
  std::string name_;
  std::vector<int64_t> shape_;
  int64_t numel_ = 1;
  Precision precision_;
  at::ScalarType param_dtype_ = at::kFloat;
  bool trainable_ = true;
  at::Tensor master_, compute_, grad_;
  kernels::PackedWeight packed_;
  std::vector<std::function<void(Parameter&)>> grad_hooks_;
};

}  // namespace weft::nn
