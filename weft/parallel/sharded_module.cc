#include "weft/parallel/sharded_module.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>

#include "weft/base/error.h"
#include "weft/mesh/choose_dim.h"
#include "weft/parallel/module_group.h"

namespace weft {
namespace detail {
namespace {

constexpr const char* kChild = "weft_shard_group";

// The group's place in the module: a child without parameters. It is not saved, and cannot be cloned.
struct GroupHolder : torch::nn::Module {
  explicit GroupHolder(std::shared_ptr<ModuleGroup> g) : torch::nn::Module("weft::ShardGroup"), group(std::move(g)) {}
  bool is_serializable() const override { return false; }
  std::shared_ptr<ModuleGroup> group;
};

// What a module has registered, as the modules derived from it see it: the copies that named_parameters() gives cannot be
// re-pointed.
struct Registered : torch::nn::Module {
  static auto& parameters(torch::nn::Module& m) { return m.*(&Registered::parameters_); }
};

struct Slot {
  std::string name;
  at::Tensor* tensor;
};
struct Below {
  std::string path;
  ModuleGroup* group;
};

std::string joined(const std::string& prefix, const std::string& name) { return prefix.empty() ? name : prefix + "." + name; }

// What the module registers, without what is below a sharded one; and the groups below, parents first.
void collect(torch::nn::Module& m, const std::string& prefix, bool sharded, std::vector<Slot>& slots, std::vector<Below>& below) {
  if (!sharded)
    for (auto& item : Registered::parameters(m))
      if (item.value().defined()) slots.push_back({joined(prefix, item.key()), &item.value()});
  for (auto& item : m.named_children()) {
    if (dynamic_cast<GroupHolder*>(item.value().get())) continue;
    const std::string path = joined(prefix, item.key());
    ModuleGroup* group = module_group(*item.value());
    if (group) below.push_back({path, group});
    collect(*item.value(), path, sharded || group, slots, below);
  }
}

void check(const Slot& slot, int64_t places) {
  const at::Tensor& t = *slot.tensor;
  if (SealedTensor::is_sealed(t))
    throw ValueError(fmt::format(
        "{} is shared with a parameter of a module below that is sharded already: shard both by one call, of a module "
        "above them",
        slot.name));
  if (t.dim() == 0)
    throw ValueError(fmt::format("{} has no dims: a scalar cannot be sharded; make it [1] or ignore it", slot.name));
  if (!t.is_cpu()) throw ValueError(fmt::format("{} is on {}: several ranks need CPU memory", slot.name, t.device().str()));
  if (t.grad().defined()) throw ValueError(fmt::format("{} has a gradient already", slot.name));
  if (static_cast<int64_t>(t.use_count()) <= places)
    throw ValueError(fmt::format(
        "{} is held by its registration only (a ParameterList or ParameterDict, or a member that was assigned another "
        "tensor): forward would not read what is gathered. Hold it in a member, or name it in `ignored`",
        slot.name));
}

}  // namespace

ModuleGroup* module_group(torch::nn::Module& module) {
  const auto children = module.named_children();
  const std::shared_ptr<torch::nn::Module>* child = children.find(kChild);
  if (!child) return nullptr;
  auto* holder = dynamic_cast<GroupHolder*>(child->get());
  return holder ? holder->group.get() : nullptr;
}

ShardGroup& as_group(ModuleGroup& group) { return group; }

std::shared_ptr<ModuleGroup> shard_module(torch::nn::Module& module, std::shared_ptr<const RankMesh> mesh,
                                          const ShardModuleOptions& options) {
  at::NoGradGuard guard;
  if (module_group(module)) throw ValueError(fmt::format("\"{}\" is sharded already", module_group(module)->name()));
  std::vector<Slot> slots;
  std::vector<Below> below;
  collect(module, "", false, slots, below);
  std::erase_if(slots, [&](const Slot& s) {
    return std::any_of(options.ignored.begin(), options.ignored.end(), [&](const at::Tensor& t) { return t.is_same(*s.tensor); });
  });
  for (const Slot& s : slots) {
    std::set<at::Tensor*> places;
    for (const Slot& other : slots)
      if (other.tensor->is_same(*s.tensor)) places.insert(other.tensor);
    check(s, static_cast<int64_t>(places.size()));
  }
  auto group = std::make_shared<ModuleGroup>(module.name(), mesh, options);
  if (options.cast_forward_inputs) group->param_dtype = options.param_dtype;
  group->output_dtype = options.output_dtype;
  std::set<const at::Tensor*> placed;
  for (const Slot& s : slots) {
    if (placed.contains(s.tensor)) continue;  // under an earlier name
    const at::Tensor member = *s.tensor;
    const std::vector<int64_t> shape = member.sizes().vec();
    const int64_t shards = mesh->fsdp.size();
    const ShardCut cut(shape, *choose_dim(shape, {}, shards).dim, shards);
    at::Tensor part = cut.part(member, mesh->fsdp.rank()).clone(at::MemoryFormat::Contiguous);
    part.set_requires_grad(member.requires_grad());
    const at::ScalarType dtype =
        member.is_floating_point() ? options.param_dtype.value_or(member.scalar_type()) : member.scalar_type();
    group->add_shard(std::make_unique<ModuleShard>(s.name, part, member, dtype));
    for (const Slot& other : slots)
      if (other.tensor->is_same(member)) *other.tensor = part, placed.insert(other.tensor);
  }
  std::vector<ShardGroup*> groups;
  for (const Below& b : below) {
    b.group->rename(b.path);
    groups.push_back(b.group);
  }
  group->adopt(groups);
  module.register_module(kChild, std::make_shared<GroupHolder>(group));
  return group;
}

ForwardScope::ForwardScope(ModuleGroup& group) : group_(group), nested_(!group.begin()) {}

ForwardScope::~ForwardScope() {
  if (!finished_) group_.abandon();
}

void ForwardScope::input(at::Tensor& t) const {
  if (group_.param_dtype && t.defined() && t.is_floating_point()) t = t.to(*group_.param_dtype);
}

void ForwardScope::finish(std::vector<at::Tensor*> outputs) {
  if (nested_)
    group_.end_nested();
  else
    group_.end(outputs);
  finished_ = true;
}

}  // namespace detail

std::vector<ShardGroup*> shard_groups(torch::nn::Module& module) {
  std::vector<detail::Slot> slots;
  std::vector<detail::Below> below;
  detail::collect(module, "", true, slots, below);
  std::vector<ShardGroup*> out;
  if (detail::ModuleGroup* g = detail::module_group(module)) out.push_back(g);
  for (const detail::Below& b : below) out.push_back(b.group);
  return out;
}

void set_requires_gradient_sync(torch::nn::Module& module, bool on) {
  for (ShardGroup* g : shard_groups(module)) g->set_requires_gradient_sync(on);
}

void set_requires_all_reduce(torch::nn::Module& module, bool on) {
  for (ShardGroup* g : shard_groups(module)) g->set_requires_all_reduce(on);
}

void set_reshard_after_backward(torch::nn::Module& module, bool on) {
  for (ShardGroup* g : shard_groups(module)) g->set_reshard_after_backward(on);
}

void set_is_last_backward(torch::nn::Module& module, bool on) {
  for (ShardGroup* g : shard_groups(module)) g->set_is_last_backward(on);
}

std::vector<std::pair<std::string, DistributedTensor>> sharded_state_dict(torch::nn::Module& module) {
  std::vector<std::pair<std::string, DistributedTensor>> out;
  for (ShardGroup* g : shard_groups(module))
    for (auto& entry : g->sharded_parameters()) out.push_back(std::move(entry));
  return out;
}

}  // namespace weft
