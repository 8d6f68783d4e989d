#include "weft/parallel/fully_shard.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/parallel/shard_group.h"

namespace weft {

ShardGroup& fully_shard(nn::Module& module, std::shared_ptr<const RankMesh> mesh, FullyShardOptions options) {
  if (module.extension()) throw ValueError(fmt::format("\"{}\" is sharded already", module.name()));
  std::vector<nn::Parameter*> mine;
  for (nn::Parameter* p : module.parameters()) {
    if (p->sharded() || std::find(options.ignored.begin(), options.ignored.end(), p) != options.ignored.end()) continue;
    if (p->dim() == 0) throw ValueError(fmt::format("{} has no dims: a scalar cannot be sharded; make it [1] or ignore it", p->name()));
    if (p->materialized())
      throw ValueError(fmt::format("{} has memory already: build the model without, call fully_shard, then materialize", p->name()));
    mine.push_back(p);
  }
  auto owned = std::make_unique<ShardGroup>(module, std::move(mine), std::move(mesh), options);
  ShardGroup& group = *owned;
  module.set_extension(std::move(owned));
  module.add_forward_pre_hook([&group](nn::Module&) { group.before_forward(); });
  module.add_forward_hook([&group](nn::Module&) { group.after_forward(); });
  // The groups below join this one's context; none of them is the outermost any more.
  const std::vector<ShardGroup*> all = shard_groups(module);
  for (ShardGroup* g : all) {
    if (g == &group) continue;
    g->context_ = group.context_;
    group.context_->groups.push_back(g);
    if (!g->options_.reshard_after_forward) g->reshard_after_forward_ = true;
  }
  if (!options.reshard_after_forward) group.reshard_after_forward_ = false;
  return group;
}

std::vector<ShardGroup*> shard_groups(nn::Module& module) {
  std::vector<ShardGroup*> out;
  for (nn::Module* m : module.modules())
    if (auto* g = dynamic_cast<ShardGroup*>(m->extension())) out.push_back(g);
  return out;
}

void set_requires_gradient_sync(nn::Module& module, bool on) {
  for (ShardGroup* g : shard_groups(module)) g->set_requires_gradient_sync(on);
}

void set_requires_all_reduce(nn::Module& module, bool on) {
  for (ShardGroup* g : shard_groups(module)) g->set_requires_all_reduce(on);
}

std::vector<LocalBox> local_boxes(const nn::Parameter& p) {
  if (const auto* group = dynamic_cast<const ShardGroup*>(p.shard_owner())) return group->layout(p).boxes(group->mesh().rank());
  const std::vector<int64_t> zero(p.shape().size(), 0);
  return {{{zero, p.shape()}, zero}};
}

Layout layout_of(const nn::Parameter& p, const RankMesh& mesh) {
  if (const auto* group = dynamic_cast<const ShardGroup*>(p.shard_owner())) return group->layout(p);
  return Layout::replicated(p.shape(), mesh.dense);
}

}  // namespace weft
