#pragma once
// A parameter: fp32 master, the copy that forward reads, an fp32 gradient buffer of ours, and the packed form that kernels read.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/base/arena.h"
#include "weft/kernels/gemm.h"

namespace weft::nn {

// Which parameters `param_dtype = bfloat16` rounds (docs/numerics.md, rule 7): projections, experts, embedding tables and the
// head; routers, norms and biases stay fp32.
enum class Precision { kParamDtype, kFp32 };

// Where a model's parameters lie on the CPU; null: libtorch's memory. While an arena sleeps, what would read it is a ValueError.
struct ParameterMemory {
  std::shared_ptr<Arena> weights;    // masters and what forward reads
  std::shared_ptr<Arena> panels;     // of parameters that are not sharded; made of the weights
  std::shared_ptr<Arena> gradients;  // grad()
};

class Parameter;

// Who cut parameters into shards (weft/parallel); called on the rank's own thread.
class ShardOwner {
 public:
  virtual ~ShardOwner() = default;
  // A read found no gathered copy: set_gathered() before returning, or throw.
  virtual void gather(Parameter& p) = 0;
  // An op recorded a backward that will add to the gradient; one did.
  virtual void grad_expected(Parameter& p) = 0;
  virtual void grad_added(Parameter& p) = 0;
};

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
  Precision precision() const { return precision_; }

  // Before materialize() or freeze().
  void set_memory(ParameterMemory memory);
  // ValueError while the weights are asleep or were lost.
  void require_weights() const {
    if (memory_.weights) memory_.weights->require();
  }

  // Allocates the master (uninitialised, fp32) on `device` and chooses the dtype that forward reads.
  void materialize(const at::Device& device, at::ScalarType param_dtype);
  bool materialized() const { return master_.defined() || compute_.defined(); }

  // For weights that are copied in and never trained, in place of materialize(): only what forward reads, without a master.
  // `values` [local_shape] in compute_dtype(param_dtype), whose memory is shared and lies in `arena` (null: in none); undefined: memory
  // of its own, uninitialised.
  void freeze(const at::Device& device, at::ScalarType param_dtype, at::Tensor values = {},
              std::shared_ptr<Arena> arena = {});
  // The same as int8 with a scale a row (kernels/quantize.h), for the weights of products, which read packed(); activations are
  // those of compute_dtype(param_dtype). `values` [local_shape] int8 and `scales` [local_shape without the last dim] fp32:
  // both in `arena`, or neither defined.
  void freeze_int8(const at::Device& device, at::ScalarType param_dtype, at::Tensor values = {}, at::Tensor scales = {},
                   std::shared_ptr<Arena> arena = {});
  // Undefined where the weights are not int8.
  const at::Tensor& row_scales() const { return row_scales_; }
  at::ScalarType compute_dtype(at::ScalarType param_dtype) const {
    return precision_ == Precision::kFp32 ? at::kFloat : param_dtype;
  }
  // Whoever wrote the values of a frozen one calls it.
  void rewritten() { packed_.clear(); }
  // Before it has memory: this rank has a part of `local_shape` only, and computes with that as it is.
  void cut(std::vector<int64_t> local_shape);

  // Before materialize(): master, its rounded copy and grad() are this rank's part only, of `local_shape`; compute() is what the
  // owner gathered, of `compute_shape` (a model-parallel axis leaves less than shape()), and backward adds to a gradient of that
  // shape, which the owner takes. The owner outlives the parameter.
  void shard(std::vector<int64_t> compute_shape, std::vector<int64_t> local_shape, ShardOwner* owner);
  bool sharded() const { return owner_ != nullptr; }
  ShardOwner* shard_owner() const { return owner_; }
  const std::vector<int64_t>& local_shape() const { return local_shape_; }
  // What ops work on: shape() where no model-parallel axis cuts it.
  const std::vector<int64_t>& compute_shape() const { return compute_shape_; }
  const at::Tensor& local_compute() const { return compute_; }  // awake or not
  // The tensor of compute_shape() in param_dtype; undefined gives it back. Drops the packed form.
  void set_gathered(at::Tensor full);
  bool gathered() const { return gathered_.defined(); }
  // What backward has added so far, of compute_shape(); undefined where nothing was. Starts anew.
  at::Tensor take_full_grad();

  // fp32 [local_shape]. Whoever writes it calls updated() afterwards.
  const at::Tensor& master() const {
    require_weights();
    return master_;
  }
  // What forward reads, of compute_shape(): the master itself in fp32, else its copy rounded to param_dtype; gathered where it is
  // sharded. int8 where it has row_scales().
  const at::Tensor& compute();
  at::ScalarType param_dtype() const { return param_dtype_; }
  // Refreshes the compute copy and drops the packed form.
  void updated();

  // The panels of the forward product; 2-D [N, K] or stacked [E, N, K]. Built on first use after a change, on the caller's
  // thread.
  const kernels::PackedWeight& packed();
  int64_t packed_bytes() const { return packed_.empty() ? 0 : packed_.bytes(); }

  bool trainable() const { return trainable_; }
  void set_trainable(bool on) { trainable_ = on; }

  // The fp32 gradient of the master, which the optimizer reads: allocated and zero on first use, never rounded. Undefined until
  // then.
  const at::Tensor& grad() const { return grad_; }
  at::Tensor& mutable_grad();
  void zero_grad();

  // For ops. Backward adds to the buffer of compute_shape() (grad() itself where nothing is sharded), zero on first use.
  float* grad_data();  // CPU only
  void add_grad(const at::Tensor& g);
  void expect_grad();

  // Called by ops when one backward contribution has been added.
  void add_grad_hook(std::function<void(Parameter&)> hook) { grad_hooks_.push_back(std::move(hook)); }
  void notify_grad();

  // A leaf for ATen compositions (other devices): its gradient is added to grad() in fp32 by a hook.
  at::Tensor leaf();

 private:
  at::Tensor& full_grad();
  void keep_frozen(at::Tensor values, at::Tensor scales);
  // Of local_shape(), uninitialised.
  at::Tensor allocate(const std::shared_ptr<Arena>& arena, at::ScalarType dtype, const at::Device& device) const;

  std::string name_;
  std::vector<int64_t> shape_;
  int64_t numel_ = 1;
  Precision precision_;
  at::ScalarType param_dtype_ = at::kFloat;
  bool trainable_ = true;
  std::vector<int64_t> compute_shape_, local_shape_;
  ShardOwner* owner_ = nullptr;
  at::Tensor master_, compute_, row_scales_, grad_, gathered_, full_grad_;
  kernels::PackedWeight packed_;
  ParameterMemory memory_;
  std::vector<std::function<void(Parameter&)>> grad_hooks_;
};

}  // namespace weft::nn
