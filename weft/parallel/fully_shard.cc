#include "weft/parallel/fully_shard.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "weft/base/error.h"
#include "weft/nn/autograd.h"

namespace weft {
namespace {

class ParameterShard final : public ShardedTensor {
 public:
  explicit ParameterShard(nn::Parameter& p) : p_(p) {}
  const std::string& name() const override { return p_.name(); }
  std::vector<int64_t> shape() const override { return p_.shape(); }
  bool trainable() const override { return p_.trainable(); }
  at::Tensor master() const override { return p_.master(); }
  at::Tensor local() override {
    if (!p_.materialized())
      throw ValueError(fmt::format("{} has no memory: materialize the model before its first forward", p_.name()));
    p_.require_weights();
    return p_.local_compute();
  }
  at::Tensor buffer() override { return at::empty(p_.compute_shape(), p_.local_compute().options()); }
  bool gathered() const override { return p_.gathered(); }
  at::Tensor full() override { return p_.compute(); }
  void set_gathered(at::Tensor full) override { p_.set_gathered(std::move(full)); }
  at::Tensor take_full_grad() override { return p_.take_full_grad(); }
  void add_grad(const at::Tensor& part) override { p_.mutable_grad().add_(part); }

 private:
  nn::Parameter& p_;
};

}  // namespace

// Backwards gather when an op first reads a parameter, and reduce when every op that was recorded has added its gradient.
class ParameterGroup final : public ShardGroup, public nn::ShardOwner, public nn::Module::Extension {
 public:
  ParameterGroup(nn::Module& module, const std::vector<nn::Parameter*>& parameters, std::shared_ptr<const RankMesh> mesh,
                 ShardOptions options)
      : ShardGroup(module.name().empty() ? "root" : module.name(), std::move(mesh), std::move(options)) {
    for (nn::Parameter* p : parameters) add(std::make_unique<ParameterShard>(*p));  // may refuse one
    for (nn::Parameter* p : parameters) {
      const Placement& at = placement(p->name());
      p->shard(at.computed.local_shape(mesh_->rank()), at.layout.local_shape(mesh_->rank()), this);
    }
    module.add_forward_pre_hook([this](nn::Module&) { before_forward(); });
    module.add_forward_hook([this](nn::Module&) { after_forward(); });
  }
  using ShardGroup::adopt;

  void gather(nn::Parameter&) override {
    unshard();
    if (nn::in_backward()) backward_needs();
  }
  void grad_expected(nn::Parameter&) override {
    ++pending_;
    unreduced_ = true;
  }
  void grad_added(nn::Parameter&) override {
    if (nn::in_backward()) register_end();
    if (--pending_ == 0) finish_backward();
  }

 private:
  void before_forward() {
    if (!nn::in_backward()) return gather_for_forward();
    unshard();  // a recompute
    backward_needs();
  }
  void after_forward() {
    if (!nn::in_backward()) reshard_after_forward();
  }
  void backward_needs() {
    register_end();
    gather_for_backward(neighbour(-1));
  }
  void register_end() {
    if (std::exchange(context_->end_registered, true)) return;
    nn::at_backward_end([context = context_] { end_of_backward(*context); });
  }
  // What no contribution completed (a parameter unused in this backward), in one order on all ranks; then the last reduction.
  static void end_of_backward(ShardContext& context) {
    context.end_registered = false;
    for (ShardGroup* group : context.groups) {
      auto* g = static_cast<ParameterGroup*>(group);
      g->pending_ = 0;
      if (g->unreduced_ && g->sync_) g->start_reduce();
      if (g->reshard_after_backward_) g->reshard();
    }
    finish_last_reduce(context);
  }

  int64_t pending_ = 0;  // gradient contributions that recorded ops still owe
};

namespace {

ParameterGroup* group_of(nn::Module& module) { return dynamic_cast<ParameterGroup*>(module.extension()); }
const ShardGroup* group_of(const nn::Parameter& p) { return dynamic_cast<const ParameterGroup*>(p.shard_owner()); }

ParameterGroup& needed_group_of(nn::Module& module) {
  if (ParameterGroup* g = group_of(module)) return *g;
  throw ValueError(fmt::format("\"{}\" has no group of its own: call fully_shard on it first", module.name()));
}

std::vector<ShardGroup*> needed_groups_of(const std::vector<nn::Module*>& modules) {
  std::vector<ShardGroup*> out;
  for (nn::Module* m : modules) out.push_back(&needed_group_of(*m));
  return out;
}

}  // namespace

ShardGroup& fully_shard(nn::Module& module, std::shared_ptr<const RankMesh> mesh, FullyShardOptions options) {
  if (module.extension()) throw ValueError(fmt::format("\"{}\" is sharded already", module.name()));
  std::vector<nn::Parameter*> mine;
  for (nn::Parameter* p : module.parameters()) {
    if (p->sharded() || std::find(options.ignored.begin(), options.ignored.end(), p) != options.ignored.end()) continue;
    if (p->dim() == 0)
      throw ValueError(fmt::format("{} has no dims: a scalar cannot be sharded; make it [1] or ignore it", p->name()));
    if (p->materialized())
      throw ValueError(
          fmt::format("{} has memory already: build the model without, call fully_shard, then materialize", p->name()));
    mine.push_back(p);
  }
  const std::vector<ShardGroup*> below = shard_groups(module);
  auto owned = std::make_unique<ParameterGroup>(module, mine, std::move(mesh), options);
  ParameterGroup& group = *owned;
  group.adopt(below);
  module.set_extension(std::move(owned));
  return group;
}

std::vector<ShardGroup*> shard_groups(nn::Module& module) {
  std::vector<ShardGroup*> out;
  for (nn::Module* m : module.modules())
    if (ParameterGroup* g = group_of(*m)) out.push_back(g);
  return out;
}

void set_requires_gradient_sync(nn::Module& module, bool on) {
  for (ShardGroup* g : shard_groups(module)) g->set_requires_gradient_sync(on);
}

void set_requires_all_reduce(nn::Module& module, bool on) {
  for (ShardGroup* g : shard_groups(module)) g->set_requires_all_reduce(on);
}

void set_reshard_after_backward(nn::Module& module, bool on) {
  for (ShardGroup* g : shard_groups(module)) g->set_reshard_after_backward(on);
}

void set_is_last_backward(nn::Module& module, bool on) {
  for (ShardGroup* g : shard_groups(module)) g->set_is_last_backward(on);
}

void set_modules_to_forward_prefetch(nn::Module& module, const std::vector<nn::Module*>& modules) {
  needed_group_of(module).set_forward_prefetch(needed_groups_of(modules));
}

void set_modules_to_backward_prefetch(nn::Module& module, const std::vector<nn::Module*>& modules) {
  needed_group_of(module).set_backward_prefetch(needed_groups_of(modules));
}

std::vector<std::pair<std::string, DistributedTensor>> sharded_state_dict(nn::Module& module,
                                                                          const std::shared_ptr<const RankMesh>& mesh) {
  std::vector<std::pair<std::string, DistributedTensor>> out;
  for (nn::Parameter* p : module.parameters())
    out.emplace_back(p->name(), DistributedTensor::from_local(p->master(), layout_of(*p, *mesh), mesh));
  return out;
}

std::vector<LocalBox> local_boxes(const nn::Parameter& p) {
  if (const ShardGroup* group = group_of(p)) return group->layout(p.name()).boxes(group->mesh().rank());
  const std::vector<int64_t> zero(p.shape().size(), 0);
  return {{{zero, p.shape()}, zero}};
}

bool counts_here(const nn::Parameter& p) {
  const ShardGroup* group = group_of(p);
  if (!group) return true;
  const Layout& layout = group->layout(p.name());
  for (const std::string& axis : layout.mesh().axes())
    if (axis != "replicate" && !layout.cuts_axis(axis) && layout.mesh().coordinate(group->mesh().rank(), axis) != 0) return false;
  return true;
}

Layout layout_of(const nn::Parameter& p, const RankMesh& mesh) {
  if (const ShardGroup* group = group_of(p)) return group->layout(p.name());
  return Layout::replicated(p.shape(), mesh.dense);
}

}  // namespace weft
