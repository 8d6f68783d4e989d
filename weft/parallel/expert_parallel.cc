#include "weft/parallel/expert_parallel.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "weft/base/error.h"
#include "weft/nn/moe.h"
#include "weft/nn/view.h"
#include "weft/parallel/row_exchange.h"

namespace weft {
namespace {

using Counts = std::vector<int64_t>;

}  // namespace

at::Tensor moe_experts(const at::Tensor& x, const at::Tensor& gates, const at::Tensor& ids, nn::Parameter& gate_up, nn::Parameter& down,
                       const Communicator& ep) {
  WEFT_CHECK(x.is_cpu(), "experts on several ranks need CPU memory");
  const int64_t k = ids.size(1), experts = gate_up.shape()[0], own = gate_up.compute_shape()[0];
  const size_t ranks = static_cast<size_t>(ep.size());
  const int64_t chunk = (experts + ep.size() - 1) / ep.size();
  const auto first = [&](size_t rank) { return std::min(experts, static_cast<int64_t>(rank) * chunk); };
  WEFT_CHECK(own == first(static_cast<size_t>(ep.rank()) + 1) - first(static_cast<size_t>(ep.rank())), "{} holds {} experts", gate_up.name(), own);

  const auto home = std::make_shared<const kernels::Permutation>(kernels::make_permutation(nn::ints(ids), k, experts));
  // Rows for each expert, here and, of this rank's experts, at every source: [ranks, own].
  Counts here(static_cast<size_t>(experts)), theirs(ranks * static_cast<size_t>(own)), owned(ranks), asked(ranks, own);
  for (size_t e = 0; e < here.size(); ++e) here[e] = home->offsets[e + 1] - home->offsets[e];
  for (size_t r = 0; r < ranks; ++r) owned[r] = first(r + 1) - first(r);
  ep.all_to_all(here.data(), owned, theirs.data(), asked, DType::kI64, "dispatch_counts").wait();
  Counts send(ranks), receive(ranks);
  std::vector<int32_t> expert_of_row;
  for (size_t r = 0; r < ranks; ++r) {
    send[r] = home->offsets[static_cast<size_t>(first(r + 1))] - home->offsets[static_cast<size_t>(first(r))];
    for (int64_t e = 0; e < own; ++e) {
      const int64_t rows = theirs[r * static_cast<size_t>(own) + static_cast<size_t>(e)];
      receive[r] += rows;
      expert_of_row.insert(expert_of_row.end(), static_cast<size_t>(rows), static_cast<int32_t>(e));
    }
  }
  // Received by source; the grouped products want them by expert.
  kernels::Permutation sorted = kernels::make_permutation(expert_of_row, 1, own);
  const auto by_source = std::make_shared<const kernels::Permutation>(kernels::Permutation{{}, sorted.position, sorted.order});
  const auto by_expert = std::make_shared<const kernels::Permutation>(std::move(sorted));

  at::Tensor rows = exchange_rows(nn::permute_rows(x, home, k), send, receive, ep, "dispatch");
  at::Tensor out = nn::expert_mlp(nn::permute_rows(rows, by_expert, 1), {by_expert, &by_expert->offsets}, gate_up, down);
  at::Tensor back = exchange_rows(nn::permute_rows(out, by_source, 1), receive, send, ep, "combine");
  return nn::combine_rows(back, gates, home, k);
}

}  // namespace weft
