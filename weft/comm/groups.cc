// How communicators are made: groups of an engine, entered where the watchdog looks.
#include <algorithm>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/comm/communicator.h"
#include "weft/comm/nccl_engine.h"
#include "weft/comm/rank_context.h"

namespace weft {
namespace {
std::shared_ptr<Group> make_group_of(RankContext* context, CommEngine* engine, OpQueue* queue, const std::vector<int>& ranks,
                                     const std::string& axis) {
  std::shared_ptr<Group> group = engine->make_group(ranks, axis, context->rank);
  group->engine = engine;
  group->queue = queue;
  group->ring_slot = context->ring->add_group(group->id, axis);
  {
    std::lock_guard lock(context->groups_mutex);
    context->groups[group->id] = ranks;
  }
  return {group.get(), [context, group](Group*) {
            context->ring->remove_group(group->ring_slot);
            std::lock_guard lock(context->groups_mutex);
            context->groups.erase(group->id);
          }};
}

// The members of `host`, on the device.
std::shared_ptr<Group> make_device_group(RankContext* context, std::shared_ptr<Group> host) {
  auto group = make_group_of(context, context->device_engine.get(), context->device_queue.get(), host->ranks, host->axis);
  group->host = std::move(host);
  return group;
}
}  // namespace

std::shared_ptr<Group> make_group(RankContext* context, const std::vector<int>& ranks, const std::string& axis) {
  return make_group_of(context, context->engine.get(), context->queue.get(), ranks, axis);
}

Communicator Communicator::sub(std::span<const int> ranks, const std::string& axis) const {
  std::vector<int> world;
  for (const int r : ranks) world.push_back(world_rank(r));
  std::vector<int> sorted = world;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    throw ValueError(fmt::format("sub('{}'): a rank stands twice in [{}]", axis, fmt::join(ranks, ", ")));
  if (!std::binary_search(sorted.begin(), sorted.end(), world_rank(rank())))
    throw ValueError(fmt::format("sub('{}'): rank {} of '{}' is not in [{}]; only members call it", axis, rank(), this->axis(), fmt::join(ranks, ", ")));
  context_->drain();
  if (group_->host) return {context_, make_device_group(context_, Communicator(context_, group_->host).sub(ranks, axis).group_)};
  // The members meet before the engine makes the group, so that one that does not come is found like in any other operation.
  Communicator parent = *this;
  uint64_t mine = hash_combine(world.size(), axis.size());
  for (const int r : world) mine = hash_combine(mine, static_cast<uint64_t>(r));
  for (const char c : axis) mine = hash_combine(mine, static_cast<unsigned char>(c));
  std::vector<uint64_t> theirs(world.size(), mine);
  std::vector<Work> open;
  for (size_t i = 0; i < world.size(); ++i) {
    if (ranks[i] == rank()) continue;
    open.push_back(parent.recv(&theirs[i], 1, DType::kI64, ranks[i], "setup"));
    open.push_back(parent.send(&mine, 1, DType::kI64, ranks[i], "setup"));
  }
  for (Work& work : open) work.wait();
  for (size_t i = 0; i < world.size(); ++i)
    if (theirs[i] != mine)
      throw ValueError(fmt::format("sub('{}'): ranks {} and {} give different ranks or names", axis, rank(), ranks[i]));
  return {context_, make_group(context_, world, axis)};
}

Communicator Communicator::on_device(const DeviceOptions& options) const {
  if (group_->host) throw ValueError(fmt::format("on_device: '{}' takes device memory already", axis()));
  if (!context_->device_engine) {
    context_->device_options = options;
    context_->device_engine = make_nccl_engine(context_, options);
    context_->device_queue = std::make_unique<OpQueue>(context_->device_engine.get(), context_->failure, context_->ring.get(),
                                                       options.background, false);
  } else if (!(context_->device_options == options)) {
    throw ValueError(fmt::format("on_device: rank {} has device {} with other options already", world_rank(), context_->device_options.device));
  }
  std::vector<int> all(static_cast<size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  // A group of its own for the set-up, so that its messages are nobody else's.
  return {context_, make_device_group(context_, sub(all, axis()).group_)};
}

}  // namespace weft
