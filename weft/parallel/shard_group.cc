#include "weft/parallel/shard_group.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "weft/base/error.h"
#include "weft/mesh/choose_dim.h"
#include "weft/nn/autograd.h"
#include "weft/nn/view.h"

namespace weft {
namespace {

constexpr const char* kUnshard = "unshard";
constexpr const char* kReduce = "grad";

// Shards one behind the other in `flat` <-> their places along `dim` of `full`.
void scatter_parts(const at::Tensor& full, int64_t dim, const std::vector<std::vector<int64_t>>& shapes, const at::Tensor& flat, bool to_full) {
  int64_t offset = 0, begin = 0;
  for (const std::vector<int64_t>& shape : shapes) {
    int64_t count = 1;
    for (int64_t s : shape) count *= s;
    const int64_t length = shape[static_cast<size_t>(dim)];
    if (count > 0) {
      at::Tensor there = full.narrow(dim, begin, length), here = flat.narrow(0, offset, count).view(shape);
      if (to_full) there.copy_(here);
      else here.copy_(there);
    }
    offset += count, begin += length;
  }
}

}  // namespace

ShardGroup::ShardGroup(nn::Module& module, std::vector<nn::Parameter*> parameters, std::shared_ptr<const RankMesh> mesh, FullyShardOptions options)
    : name_(module.name().empty() ? "root" : module.name()),
      parameters_(std::move(parameters)),
      mesh_(std::move(mesh)),
      options_(std::move(options)),
      reshard_after_forward_(options_.reshard_after_forward.value_or(true)),
      context_(std::make_shared<ShardContext>()) {
  context_->groups.push_back(this);
  const int64_t rank = mesh_->rank();
  const std::vector<int64_t> peers = mesh_->dense.group(rank, "fsdp");
  for (nn::Parameter* p : parameters_) {
    const DimChoice choice = choose_dim(p->shape(), {}, static_cast<int64_t>(peers.size()));
    Shard s{p, Layout::replicated(p->shape(), mesh_->dense).with_cut({"fsdp", *choice.dim}), *choice.dim, {}, {}, false, {}, {}, {}, {}, {}};
    for (int64_t peer : peers) {
      s.counts.push_back(s.layout.numel(peer));
      s.shapes.push_back(s.layout.local_shape(peer));
    }
    s.contiguous = std::all_of(p->shape().begin(), p->shape().begin() + s.dim, [](int64_t size) { return size == 1; });
    p->shard(s.layout.local_shape(rank), this);
    shards_.push_back(std::move(s));
  }
}

const Layout& ShardGroup::layout(const nn::Parameter& p) const {
  for (const Shard& s : shards_)
    if (s.parameter == &p) return s.layout;
  throw ValueError(fmt::format("{} is not in the group of {}", p.name(), name_));
}

bool ShardGroup::unsharded() const {
  return std::all_of(parameters_.begin(), parameters_.end(), [](const nn::Parameter* p) { return p->gathered(); });
}

void ShardGroup::start_unshard() {
  at::NoGradGuard guard;
  if (!gathers_.empty()) return;
  for (Shard& s : shards_) {
    if (s.parameter->gathered()) continue;
    const at::Tensor& local = s.parameter->local_compute();
    if (!local.defined()) throw ValueError(fmt::format("{} has no memory: materialize the model before its first forward", s.parameter->name()));
    WEFT_CHECK(local.is_cpu(), "{}: several ranks need CPU memory", s.parameter->name());
    s.full = at::empty(s.parameter->shape(), local.options());
    if (!s.contiguous) s.staging = at::empty({s.parameter->numel()}, local.options());
    void* into = s.contiguous ? s.full.data_ptr() : s.staging.data_ptr();
    gathers_.push_back(mesh_->fsdp.all_gather(local.data_ptr(), into, s.counts, nn::dtype_of(local), kUnshard));
  }
}

void ShardGroup::finish_unshard() {
  at::NoGradGuard guard;
  for (Work& w : gathers_) w.wait();
  gathers_.clear();
  for (Shard& s : shards_) {
    if (!s.full.defined()) continue;
    if (!s.contiguous) scatter_parts(s.full, s.dim, s.shapes, s.staging, true);
    s.staging = at::Tensor();
    s.parameter->set_gathered(std::exchange(s.full, at::Tensor()));
  }
}

void ShardGroup::unshard() {
  start_unshard();
  finish_unshard();
}

void ShardGroup::reshard() {
  if (!gathers_.empty()) finish_unshard();
  for (nn::Parameter* p : parameters_) p->set_gathered({});
}

void ShardGroup::prefetch(int step) {
  const auto& order = context_->forward;
  const auto at = std::find(order.begin(), order.end(), this);
  if (at == order.end()) return;
  const int64_t next = at - order.begin() + step;
  if (next >= 0 && next < static_cast<int64_t>(order.size())) order[static_cast<size_t>(next)]->start_unshard();
}

void ShardGroup::before_forward() {
  unshard();
  if (nn::in_backward()) return backward_needs();  // a recompute
  // The order of the first forward holds for all: groups run in the order of the model's code.
  auto& order = context_->forward;
  if (std::find(order.begin(), order.end(), this) == order.end()) order.push_back(this);
  prefetch(+1);
}

void ShardGroup::after_forward() {
  if (reshard_after_forward_ && !nn::in_backward()) reshard();
}

void ShardGroup::gather(nn::Parameter&) {
  unshard();
  if (nn::in_backward()) backward_needs();
}

void ShardGroup::backward_needs() {
  register_end();
  prefetch(-1);
}

void ShardGroup::grad_expected(nn::Parameter&) {
  ++pending_;
  unreduced_ = true;
}

void ShardGroup::grad_added(nn::Parameter&) {
  if (nn::in_backward()) register_end();
  if (--pending_ == 0) after_backward();
}

void ShardGroup::after_backward() {
  if (sync_) start_reduce();
  reshard();
}

void ShardGroup::start_reduce() {
  at::NoGradGuard guard;
  if (context_->reducing) context_->reducing->finish_reduce();
  unreduced_ = false;
  for (Shard& s : shards_) {
    nn::Parameter& p = *s.parameter;
    if (!p.trainable()) continue;
    at::Tensor full = p.take_full_grad();
    // Peers may have had one: all send the same sizes.
    if (!full.defined()) full = at::zeros(p.shape(), p.master().options());
    if (!s.contiguous) {
      s.sent = at::empty({p.numel()}, full.options());
      scatter_parts(full, s.dim, s.shapes, s.sent, false);
    } else {
      s.sent = full;
    }
    const at::ScalarType wire = options_.reduce_dtype == DType::kBF16 ? at::kBFloat16 : at::kFloat;
    s.sent = s.sent.to(wire);
    s.received = at::empty(p.local_shape(), full.options().dtype(wire));
    reductions_.push_back(
        mesh_->fsdp.reduce_scatter(s.sent.data_ptr(), s.received.data_ptr(), s.counts, options_.reduce_dtype, ReduceOp::kSum, kReduce));
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
    at::Tensor part = std::exchange(s.received, at::Tensor()).to(at::kFloat);
    if (mesh_->replicate.size() > 1) {
      if (s.unreplicated.defined()) part.add_(std::exchange(s.unreplicated, at::Tensor()));
      if (!all_reduce_) {
        s.unreplicated = part;
        continue;
      }
      mesh_->replicate.all_reduce(part.data_ptr(), part.data_ptr(), part.numel(), DType::kF32, ReduceOp::kSum, kReduce).wait();
    }
    if (options_.gradient_divide_factor != 1) part.mul_(1 / options_.gradient_divide_factor);
    s.parameter->mutable_grad().add_(part);
  }
}

void ShardGroup::register_end() {
  if (std::exchange(context_->end_registered, true)) return;
  nn::at_backward_end([context = context_] { end_of_backward(*context); });
}

// What no contribution completed (a parameter unused in this backward), in one order on all ranks; then the last reduction.
void ShardGroup::end_of_backward(ShardContext& context) {
  context.end_registered = false;
  for (ShardGroup* g : context.groups) {
    g->pending_ = 0;
    if (g->unreduced_ && g->sync_) g->start_reduce();
    g->reshard();
  }
  if (context.reducing) context.reducing->finish_reduce();
}

}  // namespace weft
