#pragma once
// fully_shard for libtorch modules that are not weft's (torch::nn::Linear, anyone's torch::nn::Module).
//
//   for (auto& block : model->blocks) fully_shard(block, mesh);       // bottom up; blocks are shared_ptr or ModuleHolder
//   Sharded<Model> sharded = fully_shard(model, mesh);                // what is left: embeddings, norm, head
//   torch::optim::AdamW optimizer(model->parameters(), 1e-3);         // after fully_shard: this rank's parts
//   sharded(x).sum().backward();                                      // gradients of the parts
//
// Inside Model::forward a block is called as weft::forward(block, x): libtorch's modules have no hooks. That calls
// block->forward(x) where the block is not sharded, so one model runs both ways. A sharded block's own forward, called without
// it, is a ValueError that names the parameter: outside of its forward and backward a parameter is a tensor that no operation
// accepts.
//
// What every rank holds. named_parameters() of a sharded module are this rank's parts under the same names, leaves with the
// gradients of the parts; torch::save(module) writes them. The tensors that forward reads (the members of the modules) are
// gathered for it. Every rank has the same modules, makes the same calls and runs the same forwards and backwards, with 0 rows
// where it has none; ranks start from equal parameters (each cuts its part out of its own). One thread a rank. A repeated run
// gives the same bits.
//
// Backward: the graph reaches a block through what its forward returned: tensors, or pairs, tuples, vectors, maps and optionals
// of them (specialise TensorsIn for other types). A block reached on one rank only is gathered and reduced on all, its gradients
// counting as zero where it was not reached. A tensor that leaves a forward in another way (a member) does not bring the
// parameters back: its backward throws where it reads them. No double backward, no hooks on gradients of the parts.

#include <torch/nn/module.h>

#include <array>
#include <concepts>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/parallel/shard_group.h"

namespace weft {

struct ShardModuleOptions : ShardOptions {
  // Forward and backward read parameters in this dtype, and gather them in it; the optimizer's parts keep theirs. Floating
  // parameters only.
  std::optional<at::ScalarType> param_dtype;
  // Floating tensors that the forward takes are cast to param_dtype; those that it returns to output_dtype.
  bool cast_forward_inputs = true;
  std::optional<at::ScalarType> output_dtype;
  // Parameters that stay whole on every rank; their gradients are not reduced.
  std::vector<at::Tensor> ignored;
};

// Which tensors a value holds: TensorsIn<T>::each(value, f) calls f(at::Tensor&) for each.
template <class T>
struct TensorsIn;

namespace detail {

struct ModuleGroup;

// Shards what is below `module` and in no group yet. ValueError: sharded already, a parameter without dims or on a device, with a
// gradient, of another group (tied across groups), or that no member of a module holds (forward would read this rank's part by
// its name).
std::shared_ptr<ModuleGroup> shard_module(torch::nn::Module& module, std::shared_ptr<const RankMesh> mesh,
                                          const ShardModuleOptions& options);
ModuleGroup* module_group(torch::nn::Module& module);  // null: not sharded
ShardGroup& as_group(ModuleGroup& group);

// One call of a sharded module's forward.
class ForwardScope {
 public:
  explicit ForwardScope(ModuleGroup& group);
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  void input(at::Tensor& t) const;
  void finish(std::vector<at::Tensor*> outputs);

 private:
  ModuleGroup& group_;
  bool nested_, finished_ = false;
};

template <class T>
concept HoldsTensors = requires(T& value) {
  TensorsIn<T>::each(value, [](at::Tensor&) {});
};

template <class T>
auto cast_input(const ForwardScope& scope, T&& argument) {
  std::decay_t<T> copy(std::forward<T>(argument));
  TensorsIn<std::decay_t<T>>::each(copy, [&](at::Tensor& t) { scope.input(t); });
  return copy;
}
template <class T>
requires(!HoldsTensors<std::decay_t<T>>) T && cast_input(const ForwardScope&, T&& argument) { return std::forward<T>(argument); }

}  // namespace detail

template <>
struct TensorsIn<at::Tensor> {
  static void each(at::Tensor& t, auto&& f) { f(t); }
};
template <class T>
requires std::is_arithmetic_v<T>
struct TensorsIn<T> {
  static void each(T&, auto&&) {}
};
template <detail::HoldsTensors T>
struct TensorsIn<std::optional<T>> {
  static void each(std::optional<T>& value, auto&& f) {
    if (value) TensorsIn<T>::each(*value, f);
  }
};
template <detail::HoldsTensors T>
struct TensorsIn<std::vector<T>> {
  static void each(std::vector<T>& values, auto&& f) {
    for (T& v : values) TensorsIn<T>::each(v, f);
  }
};
template <detail::HoldsTensors T, size_t N>
struct TensorsIn<std::array<T, N>> {
  static void each(std::array<T, N>& values, auto&& f) {
    for (T& v : values) TensorsIn<T>::each(v, f);
  }
};
template <class K, detail::HoldsTensors T>
struct TensorsIn<std::map<K, T>> {
  static void each(std::map<K, T>& values, auto&& f) {
    for (auto& entry : values) TensorsIn<T>::each(entry.second, f);
  }
};
template <detail::HoldsTensors A, detail::HoldsTensors B>
struct TensorsIn<std::pair<A, B>> {
  static void each(std::pair<A, B>& value, auto&& f) { TensorsIn<A>::each(value.first, f), TensorsIn<B>::each(value.second, f); }
};
template <detail::HoldsTensors... T>
struct TensorsIn<std::tuple<T...>> {
  static void each(std::tuple<T...>& value, auto&& f) {
    std::apply([&](T&... v) { (TensorsIn<T>::each(v, f), ...); }, value);
  }
};

// module.forward(arguments...), sharded or not. Collective where it is sharded.
template <std::derived_from<torch::nn::Module> M, class... A>
auto forward(M& module, A&&... arguments) {
  detail::ModuleGroup* group = detail::module_group(module);
  if (!group) return module.forward(std::forward<A>(arguments)...);
  detail::ForwardScope scope(*group);
  auto out = module.forward(detail::cast_input(scope, std::forward<A>(arguments))...);
  static_assert(detail::HoldsTensors<decltype(out)>, "specialise weft::TensorsIn for what this forward returns");
  std::vector<at::Tensor*> outputs;
  TensorsIn<decltype(out)>::each(out, [&](at::Tensor& t) { outputs.push_back(&t); });
  scope.finish(std::move(outputs));
  return out;
}
template <std::derived_from<torch::nn::Module> M, class... A>
auto forward(const std::shared_ptr<M>& module, A&&... arguments) {
  return forward(*module, std::forward<A>(arguments)...);
}
template <class M, class... A>
auto forward(const torch::nn::ModuleHolder<M>& module, A&&... arguments) {
  return forward(*module.ptr(), std::forward<A>(arguments)...);
}

// A sharded module, called like the module. A handle: the group lives as long as the module.
template <class M>
class Sharded {
 public:
  Sharded(std::shared_ptr<M> module, std::shared_ptr<detail::ModuleGroup> group)
      : module_(std::move(module)), group_(std::move(group)) {}
  template <class... A>
  auto operator()(A&&... arguments) const {
    return weft::forward(*module_, std::forward<A>(arguments)...);
  }
  M* operator->() const { return module_.get(); }
  M& operator*() const { return *module_; }
  const std::shared_ptr<M>& ptr() const { return module_; }
  // Its switches, its parts as distributed tensors (shard_group.h).
  ShardGroup& group() const { return detail::as_group(*group_); }

 private:
  std::shared_ptr<M> module_;
  std::shared_ptr<detail::ModuleGroup> group_;
};

template <std::derived_from<torch::nn::Module> M>
Sharded<M> fully_shard(const std::shared_ptr<M>& module, std::shared_ptr<const RankMesh> mesh,
                       const ShardModuleOptions& options = {}) {
  return {module, detail::shard_module(*module, std::move(mesh), options)};
}
template <class M>
Sharded<M> fully_shard(const torch::nn::ModuleHolder<M>& module, std::shared_ptr<const RankMesh> mesh,
                       const ShardModuleOptions& options = {}) {
  return fully_shard(module.ptr(), std::move(mesh), options);
}

// The groups at and below `module`, parents first.
std::vector<ShardGroup*> shard_groups(torch::nn::Module& module);
// On all of them, as for weft's modules (fully_shard.h).
void set_requires_gradient_sync(torch::nn::Module& module, bool on);
void set_requires_all_reduce(torch::nn::Module& module, bool on);
void set_reshard_after_backward(torch::nn::Module& module, bool on);
void set_is_last_backward(torch::nn::Module& module, bool on);
// This rank's parts of all sharded parameters at and below, by name. No communication.
std::vector<std::pair<std::string, DistributedTensor>> sharded_state_dict(torch::nn::Module& module);

}  // namespace weft
