#include "weft/parallel/context_parallel.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include "weft/base/error.h"
#include "weft/nn/autograd.h"
#include "weft/parallel/shard_cut.h"

namespace weft {

struct ContextParallelAttention::Plan {
  nn::AttentionShape shape;
  std::vector<int64_t> offsets;
  Communicator cp;
  std::vector<int64_t> rows;            // of each rank
  std::vector<kernels::QueryRun> runs;  // this rank's
  at::Tensor by_position, by_rank;      // [K]: where each position's row is among the ranks' rows, and the inverse

  int64_t total() const { return offsets.back(); }
  std::vector<int64_t> counts(int64_t width) const {
    std::vector<int64_t> out = rows;
    for (int64_t& n : out) n *= width;
    return out;
  }

  struct Keys {
    at::Tensor k, v;
  };
  Keys gather(const at::Tensor& k, const at::Tensor& v) const {
    const std::vector<int64_t> n = counts(k.size(1));
    at::Tensor all_k = at::empty({total(), k.size(1)}, k.options()), all_v = at::empty(all_k.sizes(), v.options());
    Work first = cp.all_gather(k.data_ptr(), all_k.data_ptr(), n, wire_dtype(k), "kv");
    Work second = cp.all_gather(v.data_ptr(), all_v.data_ptr(), n, wire_dtype(v), "kv");
    first.wait();
    at::Tensor sorted_k = at::index_select(all_k, 0, by_position);
    second.wait();
    return {sorted_k, at::index_select(all_v, 0, by_position)};
  }

  // Of fp32 terms [K, W] of every rank this rank's rows of the sum, rounded to `dtype`.
  at::Tensor scatter_sum(const at::Tensor& terms, at::ScalarType dtype) const {
    at::Tensor all = at::index_select(terms, 0, by_rank),
               mine = at::empty({rows[static_cast<size_t>(cp.rank())], terms.size(1)}, terms.options());
    cp.reduce_scatter(all.data_ptr(), mine.data_ptr(), counts(terms.size(1)), DType::kF32, ReduceOp::kSum, "kv_grad").wait();
    return mine.to(dtype);
  }
};

ContextParallelAttention::ContextParallelAttention(nn::AttentionShape shape, std::vector<int64_t> offsets, const Communicator& cp,
                                                   ContextSplit split) {
  auto plan = std::make_shared<Plan>(Plan{shape, std::move(offsets), cp, {}, {}, {}, {}});
  plan->by_position = at::empty({plan->total()}, at::kLong);
  plan->by_rank = at::empty({plan->total()}, at::kLong);
  int64_t row = 0;
  for (int64_t rank = 0; rank < cp.size(); ++rank) {
    const int64_t first = row;
    for (const ContextPiece& p : context_pieces(plan->offsets, cp.size(), rank, split)) {
      if (rank == cp.rank()) plan->runs.push_back({row - first, row - first + p.size(), p.sequence, p.begin});
      const int64_t position = plan->offsets[static_cast<size_t>(p.sequence)] + p.begin;
      for (int64_t i = 0; i < p.size(); ++i, ++row) {
        plan->by_position.data_ptr<int64_t>()[position + i] = row;
        plan->by_rank.data_ptr<int64_t>()[row] = position + i;
      }
    }
    plan->rows.push_back(row - first);
  }
  plan_ = std::move(plan);
}

at::Tensor ContextParallelAttention::attend(int64_t, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const Plan& p = *plan_;
  WEFT_CHECK(q.is_cpu(), "context parallelism needs CPU memory");
  WEFT_CHECK(q.size(0) == p.rows[static_cast<size_t>(p.cp.rank())], "{} rows of {}", q.size(0),
             p.rows[static_cast<size_t>(p.cp.rank())]);
  const at::Tensor qs = q.detach(), ks = k.detach().contiguous(), vs = v.detach().contiguous();
  Plan::Keys keys = p.gather(ks, vs);
  nn::AttentionValues values =
      nn::attention_values(p.shape, p.offsets, p.runs, qs, keys.k, keys.v, nn::needs_grad({q, k, v}, {}));
  at::Tensor o = values.o;
  values.o = o.detach();
  return nn::record({q, k, v}, {}, o, [plan = plan_, qs, ks, vs, values](const nn::Grads& g) -> nn::Grads {
    const Plan::Keys all = plan->gather(ks, vs);
    nn::AttentionGradients d =
        nn::attention_gradients(plan->shape, plan->offsets, plan->runs, qs, all.k, all.v, values, g[0].contiguous(), at::kFloat);
    at::Tensor dk = plan->scatter_sum(d.dk, ks.scalar_type());
    return {d.dq, dk, plan->scatter_sum(d.dv, vs.scalar_type())};
  });
}

}  // namespace weft
