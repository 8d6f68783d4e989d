#include "weft/parallel/vocab_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "weft/base/error.h"
#include "weft/nn/autograd.h"
#include "weft/nn/embedding.h"
#include "weft/nn/linear.h"
#include "weft/nn/moe.h"
#include "weft/nn/view.h"
#include "weft/parallel/row_exchange.h"
#include "weft/parallel/tensor_parallel.h"

namespace weft {
namespace {

kernels::VocabSpan span_of(const nn::Parameter& weight, const Communicator& tp) {
  const int count = kernels::kNumLeaves / tp.size();
  const kernels::VocabSpan span{weight.shape()[0], tp.rank() * count, count};
  WEFT_CHECK(weight.compute_shape()[0] == span.end() - span.begin(), "{} holds {} rows of the vocabulary", weight.name(),
             weight.compute_shape()[0]);
  return span;
}

// Rows `at` of [rows, H] are `values`, the others -0, which adds to nothing: +0 would turn a -0 of another rank into +0.
at::Tensor place_rows(const at::Tensor& values, const at::Tensor& at, int64_t rows) {
  at::Tensor out = at::full({rows, values.size(1)}, -0.0f, values.options());
  out.index_copy_(0, at, values.detach());
  return nn::record({values}, {}, out, [at](const nn::Grads& g) -> nn::Grads { return {g[0].index_select(0, at)}; });
}

// The ranks' sums of each row, joined by the binary tree.
std::vector<kernels::VocabSum> join(const std::vector<kernels::VocabSum>& mine, const Communicator& tp) {
  const size_t rows = mine.size(), ranks = static_cast<size_t>(tp.size());
  std::vector<kernels::VocabSum> all(rows * ranks), whole(rows);
  const std::vector<int64_t> counts(ranks, static_cast<int64_t>(rows) * 3);
  static_assert(sizeof(kernels::VocabSum) == 3 * sizeof(float));
  tp.all_gather(mine.data(), all.data(), counts, DType::kF32, "vocab_sums").wait();
  for (size_t r = 0; r < rows; ++r) {
    std::vector<kernels::VocabSum> level;
    for (size_t p = 0; p < ranks; ++p) level.push_back(all[p * rows + r]);
    for (; level.size() > 1; level.resize(level.size() / 2))
      for (size_t i = 0; i + 1 < level.size(); i += 2) level[i / 2] = kernels::join_vocab_sums(level[i], level[i + 1]);
    whole[r] = level[0];
  }
  return whole;
}

}  // namespace

at::Tensor vocab_embedding(const at::Tensor& ids, nn::Parameter& table, const Communicator& tp) {
  const kernels::VocabSpan span = span_of(table, tp);
  std::vector<int32_t> local;
  std::vector<int64_t> place;
  const auto tokens = nn::ints(ids);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= span.vocab)
      throw ValueError(
          fmt::format("{}: token id {} at position {} is outside the vocabulary of {}", table.name(), tokens[i], i, span.vocab));
    if (tokens[i] < span.begin() || tokens[i] >= span.end()) continue;
    local.push_back(static_cast<int32_t>(tokens[i] - span.begin()));
    place.push_back(static_cast<int64_t>(i));
  }
  const auto tensor = [](const auto& values, at::ScalarType dtype) {
    at::Tensor t = at::empty({static_cast<int64_t>(values.size())}, dtype);
    std::copy(values.begin(), values.end(), static_cast<typename std::decay_t<decltype(values)>::value_type*>(t.data_ptr()));
    return t;
  };
  at::Tensor found = nn::embedding(tensor(local, at::kInt), table);
  return sum_over_ranks(place_rows(found, tensor(place, at::kLong), ids.size(0)), tp);
}

nn::HeadOutput vocab_log_probs(const at::Tensor& x, nn::Parameter& weight, std::shared_ptr<const nn::HeadRows> rows,
                               bool want_entropy, const Communicator& tp) {
  const kernels::VocabSpan span = span_of(weight, tp);
  const size_t r = rows->rows.size();
  WEFT_CHECK(static_cast<int64_t>(r) == x.size(0), "{} rows asked of {}", r, x.size(0));
  std::vector<kernels::VocabSum> sums(r);
  at::Tensor target_z = at::full({x.size(0)}, -0.0f, nn::fp32());
  at::Tensor xs = x.detach();
  kernels::head_logprob_span(nn::matrix(xs), weight.packed(), span, rows->rows, want_entropy, sums.data(),
                             target_z.data_ptr<float>());
  sums = join(sums, tp);
  target_z = sum_over_ranks(target_z, tp);  // one rank has it, the others -0
  at::Tensor lp = at::empty({x.size(0)}, nn::fp32()), lse = at::empty_like(lp),
             entropy = want_entropy ? at::empty_like(lp) : at::Tensor();
  for (size_t i = 0; i < r; ++i)
    kernels::finish_vocab_sum(sums[i], target_z.data_ptr<float>()[i], lp.data_ptr<float>() + i,
                              want_entropy ? entropy.data_ptr<float>() + i : nullptr, lse.data_ptr<float>() + i);
  nn::Parameter* w = &weight;
  at::Tensor kept = want_entropy ? entropy.detach() : at::Tensor();
  auto backward = [xs, lse, kept, rows, w, span](const nn::Grads& g) -> nn::Grads {
    at::Tensor dlp = g[0].defined() ? g[0].contiguous() : at::zeros({xs.size(0)}, nn::fp32());
    at::Tensor dent = g.size() > 1 && g[1].defined() ? g[1].contiguous() : at::Tensor();
    at::Tensor dx = at::empty_like(xs);
    kernels::head_logprob_span_backward(nn::matrix(xs), w->packed(), nn::matrix(w->compute()), span, rows->rows,
                                        lse.data_ptr<float>(), dent.defined() ? kept.data_ptr<float>() : nullptr,
                                        dlp.data_ptr<float>(), dent.defined() ? dent.data_ptr<float>() : nullptr, nn::matrix(dx),
                                        w->trainable() ? w->grad_data() : nullptr);
    if (w->trainable()) w->notify_grad();
    return {dx};
  };
  // Its gradient has each rank's part of the vocabulary: summed.
  at::Tensor in = copy_to_ranks(x, tp);
  if (!want_entropy) return {nn::record({in}, {w}, lp, backward), {}};
  auto outs = nn::record({in}, {w}, std::vector<at::Tensor>{lp, entropy}, backward);
  return {outs[0], outs[1]};
}

at::Tensor vocab_logits(const at::Tensor& x, nn::Parameter& weight, const Communicator& tp) {
  at::NoGradGuard guard;
  const int count = kernels::kNumLeaves / tp.size();
  const int64_t rows = x.size(0), vocab = weight.shape()[0];
  std::vector<int64_t> width, counts;
  for (int r = 0; r < tp.size(); ++r) {
    const kernels::VocabSpan span{vocab, r * count, count};
    width.push_back(span.end() - span.begin());
    counts.push_back(width.back() * rows);
  }
  (void)span_of(weight, tp);
  const at::Tensor own = nn::linear(x, weight, nullptr, at::kFloat).contiguous();
  at::Tensor all = at::empty({rows * vocab}, own.options());
  tp.all_gather(own.data_ptr(), all.data_ptr(), counts, DType::kF32, "logits").wait();
  std::vector<at::Tensor> parts;
  int64_t at = 0;
  for (size_t r = 0; r < counts.size(); at += counts[r++])
    parts.push_back(all.narrow(0, at, counts[r]).reshape({rows, width[r]}));
  return at::cat(parts, 1);
}

at::Tensor exchanged_embedding(const at::Tensor& ids, nn::Parameter& table, const Communicator& axis) {
  const int64_t rows = table.shape()[0], chunk = (rows + axis.size() - 1) / axis.size();
  const auto tokens = nn::ints(ids);
  std::vector<int32_t> owner;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= rows)
      throw ValueError(fmt::format("{}: row {} at position {} is outside its {}", table.name(), tokens[i], i, rows));
    owner.push_back(static_cast<int32_t>(tokens[i] / chunk));
  }
  kernels::Permutation by_owner = kernels::make_permutation(owner, 1, axis.size());
  const size_t ranks = static_cast<size_t>(axis.size());
  std::vector<int64_t> asked(ranks), owned(ranks), ones(ranks, 1);
  for (size_t r = 0; r < ranks; ++r) asked[r] = by_owner.offsets[r + 1] - by_owner.offsets[r];
  axis.all_to_all(asked.data(), ones, owned.data(), ones, DType::kI64, "lookup_counts").wait();
  at::Tensor wanted = at::empty({ids.size(0)}, at::kInt),
             found = at::empty({std::accumulate(owned.begin(), owned.end(), int64_t{0})}, at::kInt);
  for (size_t i = 0; i < tokens.size(); ++i)
    wanted.data_ptr<int32_t>()[i] = static_cast<int32_t>(tokens[static_cast<size_t>(by_owner.order[i])] % chunk);
  axis.all_to_all(wanted.data_ptr(), asked, found.data_ptr(), owned, DType::kI32, "lookup_ids").wait();
  at::Tensor answers = exchange_rows(nn::embedding(found, table), owned, asked, axis, "lookup");
  // Back into the order of the ids.
  const auto home = std::make_shared<const kernels::Permutation>(kernels::Permutation{{}, by_owner.position, by_owner.order});
  return nn::permute_rows(answers, home, 1);
}

}  // namespace weft
