#include "weft/parallel/distributed_tensor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "weft/base/error.h"
#include "weft/mesh/redistribute.h"
#include "weft/parallel/shard_cut.h"

namespace weft {
namespace {

at::Tensor part(at::Tensor t, const std::vector<int64_t>& offset, const std::vector<int64_t>& size) {
  for (size_t d = 0; d < size.size(); ++d) t = t.narrow(static_cast<int64_t>(d), offset[d], size[d]);
  return t;
}

at::Tensor run_stage(const Stage& stage, const at::Tensor& local, const RankMesh& mesh) {
  const int64_t rank = mesh.rank();
  const size_t ranks = static_cast<size_t>(mesh.world.size());
  const DType dtype = wire_dtype(local);
  std::vector<int64_t> send_counts(ranks, 0), recv_counts(ranks, 0);
  int64_t sent = 0, received = 0;
  for (const StageTransfer& s : stage.transfers) {
    const Transfer& t = s.transfer;
    if (t.source == rank) send_counts[static_cast<size_t>(t.destination)] += t.box.numel(), sent += t.box.numel();
    if (t.destination == rank) recv_counts[static_cast<size_t>(t.source)] += t.box.numel(), received += t.box.numel();
  }
  // Transfers are sorted by source, then destination: one pass packs for all destinations, another unpacks from all sources.
  at::Tensor out_buffer = at::empty({sent}, local.options()), in_buffer = at::empty({received}, local.options());
  int64_t at = 0;
  for (const StageTransfer& s : stage.transfers) {
    const Transfer& t = s.transfer;
    if (t.source != rank) continue;
    out_buffer.narrow(0, at, t.box.numel()).view(t.box.size).copy_(part(local, t.source_offset, t.box.size));
    at += t.box.numel();
  }
  mesh.world.all_to_all(out_buffer.data_ptr(), send_counts, in_buffer.data_ptr(), recv_counts, dtype, "redistribute").wait();

  const std::vector<int64_t> shape = stage.to.local_shape(rank);
  std::vector<at::Tensor> terms;
  for (int64_t i = 0; i < stage.contributions; ++i)
    terms.push_back(stage.fill ? at::full(shape, identity(*stage.fill), local.options()) : at::empty(shape, local.options()));
  at = 0;
  for (const StageTransfer& s : stage.transfers) {
    const Transfer& t = s.transfer;
    if (t.destination != rank) continue;
    part(terms[static_cast<size_t>(s.contribution)], t.destination_offset, t.box.size)
        .copy_(in_buffer.narrow(0, at, t.box.numel()).view(t.box.size));
    at += t.box.numel();
  }
  if (terms.size() > 1) {
    std::vector<const std::byte*> parts;
    for (const at::Tensor& term : terms) parts.push_back(static_cast<const std::byte*>(term.data_ptr()));
    // An average is a sum and one division, before the one rounding.
    const ReduceOp op = stage.divisor == stage.contributions ? ReduceOp::kAvg : stage.op;
    reduce_parts(parts, static_cast<std::byte*>(terms[0].data_ptr()), terms[0].numel(), dtype, op);
    if (stage.divisor != 1 && stage.divisor != stage.contributions) terms[0].div_(stage.divisor);
  }
  return terms[0];
}

}  // namespace

DistributedTensor::DistributedTensor(at::Tensor local, Layout layout, std::shared_ptr<const RankMesh> mesh)
    : local_(std::move(local)), layout_(std::move(layout)), mesh_(std::move(mesh)) {}

DistributedTensor DistributedTensor::from_local(at::Tensor local, Layout layout, std::shared_ptr<const RankMesh> mesh) {
  const std::vector<int64_t> shape = layout.local_shape(mesh->rank());
  if (local.sizes() != at::IntArrayRef(shape))
    throw ValueError(fmt::format("the local tensor of rank {} is [{}], the layout {} gives it [{}]", mesh->rank(),
                                 fmt::join(local.sizes().begin(), local.sizes().end(), ", "), layout.to_string(),
                                 fmt::join(shape, ", ")));
  if (!local.is_cpu() || !local.is_contiguous()) throw ValueError("a distributed tensor's part is contiguous and on the CPU");
  return DistributedTensor(std::move(local), std::move(layout), std::move(mesh));
}

DistributedTensor DistributedTensor::distribute(const at::Tensor& full, Layout layout, std::shared_ptr<const RankMesh> mesh) {
  DistributedTensor whole = from_local(full.contiguous(), Layout::replicated(layout.shape(), layout.mesh()), mesh);
  return whole.redistribute(layout);
}

DistributedTensor DistributedTensor::redistribute(const Layout& to) const {
  at::NoGradGuard guard;
  at::Tensor local = local_;
  for (const Stage& stage : plan_redistribute(layout_, to)) local = run_stage(stage, local, *mesh_);
  return DistributedTensor(std::move(local), to, mesh_);
}

void scatter_tensor(const at::Tensor& full, int64_t root, const Layout& layout, const at::Tensor& local, const RankMesh& mesh) {
  at::NoGradGuard guard;
  const Layout from =
      Layout::from_boxes(layout.shape(), {{root, {{std::vector<int64_t>(layout.shape().size(), 0), layout.shape()}}}});
  Stage stage{from, layout, {}, ReduceOp::kSum, 1, 1, {}};
  for (Transfer& t : plan_copy(from, layout)) stage.transfers.push_back({std::move(t), 0});
  local.copy_(run_stage(stage, mesh.rank() == root ? full : at::empty({0}, local.options()), mesh));
}

at::Tensor DistributedTensor::full_tensor() const {
  return redistribute(Layout::replicated(layout_.shape(), layout_.mesh())).local_;
}

}  // namespace weft
