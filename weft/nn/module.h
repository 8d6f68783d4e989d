#pragma once
// The module tree: names, parameters, hooks. Modules are plain classes whose forward has its own signature; run() fires the hooks
// around it, and sharding hangs on those hooks.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/nn/parameter.h"

namespace weft::nn {

class Module {
 public:
  // `name` is the full dotted name, "model.layers.3.mlp"; the root's is empty.
  explicit Module(std::string name) : name_(std::move(name)) {}
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<Module*>& children() const { return children_; }
  const std::vector<Parameter*>& own_parameters() const { return own_; }
  // Depth first, in order of registration; a shared (tied) parameter once.
  std::vector<Parameter*> parameters() const;
  // This module and all below it, parents first.
  std::vector<Module*> modules();

  // What another folder keeps for this module (a shard group of weft/parallel), for as long as the module lives.
  struct Extension {
    virtual ~Extension() = default;
  };
  void set_extension(std::unique_ptr<Extension> e) { extension_ = std::move(e); }
  Extension* extension() const { return extension_.get(); }

  using Hook = std::function<void(Module&)>;
  void add_forward_pre_hook(Hook hook) { pre_hooks_.push_back(std::move(hook)); }
  void add_forward_hook(Hook hook) { post_hooks_.push_back(std::move(hook)); }

 protected:
  std::string child_name(const std::string& leaf) const { return name_.empty() ? leaf : name_ + "." + leaf; }
  // The module owns what add_* returns.
  Parameter* add_parameter(const std::string& leaf, std::vector<int64_t> shape, Precision precision = Precision::kParamDtype);
  template <class M, class... Args>
  M* add_module(const std::string& leaf, Args&&... args) {
    auto child = std::make_unique<M>(child_name(leaf), std::forward<Args>(args)...);
    M* raw = child.get();
    children_.push_back(raw);
    owned_modules_.push_back(std::move(child));
    return raw;
  }
  // A parameter that another module owns (a tied head).
  void share_parameter(Parameter* p) { own_.push_back(p); }

  template <class F>
  auto run(F&& forward) {
    for (auto& hook : pre_hooks_) hook(*this);
    auto result = forward();
    for (auto& hook : post_hooks_) hook(*this);
    return result;
  }

 private:
  std::string name_;
  std::vector<Module*> children_;
  std::vector<Parameter*> own_;
  std::vector<std::unique_ptr<Module>> owned_modules_;
  std::vector<std::unique_ptr<Parameter>> owned_parameters_;
  std::vector<Hook> pre_hooks_, post_hooks_;
  std::unique_ptr<Extension> extension_;
};

}  // namespace weft::nn
