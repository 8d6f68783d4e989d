#include "weft/parallel/shard_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "weft/base/error.h"
#include "weft/mesh/choose_dim.h"

namespace weft {
namespace {

constexpr const char* kReduce = "grad";

at::ScalarType reduced_as(const at::Tensor& master, DType reduce_dtype) {
  if (master.scalar_type() == at::kDouble) return at::kDouble;
  return reduce_dtype == DType::kBF16 ? at::kBFloat16 : at::kFloat;
}

}  // namespace

ShardGroup::ShardGroup(std::string name, std::shared_ptr<const RankMesh> mesh, ShardOptions options)
    : name_(std::move(name)), mesh_(std::move(mesh)), options_(std::move(options)), context_(std::make_shared<ShardContext>()) {
  if (options_.reduce_dtype != DType::kF32 && options_.reduce_dtype != DType::kBF16)
    throw ValueError(
        fmt::format("reduce_dtype of \"{}\" is {}: it may be float32 or bfloat16", name_, dtype_name(options_.reduce_dtype)));
  context_->groups.push_back(this);
  set_mode(options_.reshard_after_forward.value_or(false));
}

void ShardGroup::set_mode(std::variant<bool, int64_t> mode) {
  const int64_t shards = mesh_->fsdp.size();
  if (const bool* on = std::get_if<bool>(&mode)) {
    keep_among_ = *on ? 0 : 1;
    return;
  }
  const int64_t k = std::get<int64_t>(mode);
  if (k < 1 || shards % k != 0)
    throw ValueError(
        fmt::format("reshard_after_forward = {} of \"{}\": an integer must divide the number of shards, {}", k, name_, shards));
  keep_among_ = k == shards && shards > 1 ? 0 : k;
  if (keep_among_ > 1) (void)mesh_->neighbours(mesh_->fsdp, keep_among_);  // collective: here, where all ranks come by
}

void ShardGroup::set_reshard_after_forward(bool on) { set_mode(on); }

void ShardGroup::add(std::unique_ptr<ShardedTensor> tensor) {
  Placement placement = place_parameter(options_.plan, mesh_->dims, tensor->name(), tensor->shape());
  const Layout &computed = placement.computed, &layout = placement.layout;
  const std::vector<int64_t> shape = computed.local_shape(mesh_->rank());
  const Communicator& ranks = mesh_->along(layout.mesh(), placement.fsdp_axis);
  std::optional<int64_t> dim;
  for (const Cut& cut : layout.cuts())
    if (cut.axis == placement.fsdp_axis) dim = cut.dim;
  ShardCut cut(shape, dim, ranks.size());
  std::vector<const Communicator*> terms;
  for (const std::string& axis : placement.partial_axes) terms.push_back(&mesh_->along(layout.mesh(), axis));
  if (mesh_->replicate.size() > 1) terms.push_back(&mesh_->replicate);
  if (keep_among_ > 1) {
    if (placement.fsdp_axis != "fsdp" || !dim || !computed.cuts().empty())
      throw ValueError(fmt::format("{}: reshard_after_forward = {} is for parameters that only fsdp cuts", tensor->name(), keep_among_));
    kept_cuts_.emplace_back(shape, choose_dim(shape, {}, keep_among_).dim, keep_among_);
  }
  shards_.push_back({std::move(tensor), std::move(placement), std::move(cut), &ranks, std::move(terms), {}, {}, {}, {}, {}});
}

void ShardGroup::adopt(const std::vector<ShardGroup*>& below) {
  for (ShardGroup* g : below) {
    g->context_ = context_;
    context_->groups.push_back(g);
    if (!g->options_.reshard_after_forward) g->keep_among_ = 0;
  }
}

std::vector<std::string> ShardGroup::parameter_names() const {
  std::vector<std::string> out;
  for (const Shard& s : shards_) out.push_back(s.tensor->name());
  return out;
}

const Layout& ShardGroup::layout(const std::string& parameter) const { return placement(parameter).layout; }

const Placement& ShardGroup::placement(const std::string& parameter) const {
  for (const Shard& s : shards_)
    if (s.tensor->name() == parameter) return s.placement;
  throw ValueError(fmt::format("{} is not in the group of {}", parameter, name_));
}

std::vector<std::pair<std::string, DistributedTensor>> ShardGroup::sharded_parameters() const {
  std::vector<std::pair<std::string, DistributedTensor>> out;
  for (const Shard& s : shards_)
    out.emplace_back(s.tensor->name(), DistributedTensor::from_local(s.tensor->master(), s.placement.layout, mesh_));
  return out;
}

bool ShardGroup::trainable() const {
  return std::any_of(shards_.begin(), shards_.end(), [](const Shard& s) { return s.tensor->trainable(); });
}

bool ShardGroup::unsharded() const {
  return std::all_of(shards_.begin(), shards_.end(), [](const Shard& s) { return s.tensor->gathered(); });
}

const ShardCut& ShardGroup::cut_of(Shard& s) { return kept_ ? kept_cuts_[static_cast<size_t>(&s - shards_.data())] : s.cut; }

void ShardGroup::start_unshard(bool forward) {
  at::NoGradGuard guard;
  if (gathering_) return;
  // A forward may follow an update: what was kept before it is old.
  if (forward && kept_) {
    for (Shard& s : shards_) s.kept = at::Tensor();
    kept_ = false;
  }
  for (Shard& s : shards_) {
    if (s.tensor->gathered()) continue;
    const at::Tensor local = kept_ ? s.kept : s.tensor->local();
    WEFT_CHECK(local.is_cpu(), "{}: several ranks need CPU memory", s.tensor->name());
    s.gather.emplace(local, s.tensor->buffer(), cut_of(s), kept_ ? mesh_->neighbours(*s.ranks, keep_among_) : *s.ranks);
  }
  gathering_ = true;
}

void ShardGroup::finish_unshard() {
  at::NoGradGuard guard;
  if (!std::exchange(gathering_, false)) return;
  for (Shard& s : shards_) {
    if (!s.gather) continue;
    s.tensor->set_gathered(s.gather->finish(cut_of(s)));
    s.gather.reset();
  }
}

void ShardGroup::unshard(bool async) {
  start_unshard(false);
  if (!async) finish_unshard();
}

void ShardGroup::reshard() {
  finish_unshard();
  for (Shard& s : shards_) s.tensor->set_gathered({}), s.kept = at::Tensor();
  kept_ = false;
}

void ShardGroup::reshard_after_forward() {
  at::NoGradGuard guard;
  if (keep_among_ == 1) return;
  if (keep_among_ == 0) return reshard();
  for (size_t i = 0; i < shards_.size(); ++i) {
    Shard& s = shards_[i];
    if (!kept_)
      s.kept = kept_cuts_[i].part(s.tensor->full(), mesh_->neighbours(*s.ranks, keep_among_).rank()).clone(at::MemoryFormat::Contiguous);
    s.tensor->set_gathered({});
  }
  kept_ = true;
}

ShardGroup* ShardGroup::neighbour(int step) const {
  const auto& order = context_->forward;
  const auto at = std::find(order.begin(), order.end(), this);
  if (at == order.end()) return nullptr;
  const int64_t next = at - order.begin() + step;
  return next >= 0 && next < static_cast<int64_t>(order.size()) ? order[static_cast<size_t>(next)] : nullptr;
}

void ShardGroup::gather_for_forward() {
  start_unshard(true);
  finish_unshard();
  // The order of the first forward holds for all: groups run in the order of the model's code.
  auto& order = context_->forward;
  if (std::find(order.begin(), order.end(), this) == order.end()) order.push_back(this);
  if (!forward_prefetch_.empty()) {
    for (ShardGroup* g : forward_prefetch_) g->start_unshard(true);
  } else if (ShardGroup* next = neighbour(+1)) {
    next->start_unshard(true);
  }
}

void ShardGroup::gather_for_backward(ShardGroup* next) {
  if (unshard_in_backward_) unshard();
  const std::vector<ShardGroup*> one{next};
  for (ShardGroup* g : backward_prefetch_.empty() ? one : backward_prefetch_)
    if (g && g->unshard_in_backward_) g->start_unshard(false);
}

void ShardGroup::finish_backward() {
  if (sync_) start_reduce();
  if (reshard_after_backward_) reshard();
}

void ShardGroup::start_reduce() {
  at::NoGradGuard guard;
  if (context_->reducing) context_->reducing->finish_reduce();
  unreduced_ = false;
  for (Shard& s : shards_) {
    if (!s.tensor->trainable()) continue;
    const at::Tensor master = s.tensor->master();
    const at::ScalarType wire = reduced_as(master, options_.reduce_dtype);
    at::Tensor full = s.tensor->take_full_grad();
    // Peers may have had one: all send the same sizes.
    full = full.defined() ? full.to(wire) : at::zeros(s.cut.shape, master.options().dtype(wire));
    s.sent = s.cut.to_flat(full);
    s.received = at::empty(master.sizes(), master.options().dtype(wire));
    const DType dtype = wire_dtype(s.sent);
    if (s.cut.copies)
      reductions_.push_back(s.ranks->all_reduce(s.sent.data_ptr(), s.received.data_ptr(), s.sent.numel(), dtype, ReduceOp::kSum, kReduce));
    else
      reductions_.push_back(s.ranks->reduce_scatter(s.sent.data_ptr(), s.received.data_ptr(), s.cut.counts, dtype, ReduceOp::kSum, kReduce));
  }
  context_->reducing = this;
}

void ShardGroup::finish_reduce() {
  at::NoGradGuard guard;
  context_->reducing = nullptr;
  for (Work& w : reductions_) w.wait();
  reductions_.clear();
  for (Shard& s : shards_) {
    s.sent = at::Tensor();
    if (!s.received.defined()) continue;
    at::Tensor part = std::exchange(s.received, at::Tensor());
    if (part.scalar_type() == at::kBFloat16) part = part.to(at::kFloat);
    if (!s.terms.empty()) {
      if (s.unreplicated.defined()) part.add_(std::exchange(s.unreplicated, at::Tensor()));
      if (!all_reduce_) {
        s.unreplicated = part;
        continue;
      }
      for (const Communicator* ranks : s.terms)
        ranks->all_reduce(part.data_ptr(), part.data_ptr(), part.numel(), wire_dtype(part), ReduceOp::kSum, kReduce).wait();
    }
    if (options_.gradient_divide_factor != 1) part.mul_(1 / options_.gradient_divide_factor);
    s.tensor->add_grad(part);
  }
}

void ShardGroup::finish_last_reduce(ShardContext& context) {
  if (context.reducing && context.last_backward) context.reducing->finish_reduce();
}

}  // namespace weft
