#include "weft/train/packed_micro_batch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "weft/base/error.h"
#include "weft/mesh/token_sharing.h"
#include "weft/parallel/context_parallel.h"
#include "weft/parallel/tensor_parallel.h"

namespace weft {
namespace {

template <class T>
std::vector<T> gather_over(const Communicator& ranks, const std::vector<T>& mine, const std::vector<std::vector<int64_t>>& places,
                           int64_t width, DType dtype, const char* purpose) {
  std::vector<int64_t> counts;
  int64_t total = 0;
  for (const auto& p : places) counts.push_back(static_cast<int64_t>(p.size()) * width), total += counts.back();
  WEFT_CHECK(static_cast<int64_t>(mine.size()) == counts[static_cast<size_t>(ranks.rank())], "{} values for {}", mine.size(),
             counts[static_cast<size_t>(ranks.rank())]);
  std::vector<T> all(static_cast<size_t>(total)), out(all.size());
  ranks.all_gather(mine.data(), all.data(), counts, dtype, purpose).wait();
  auto from = all.begin();
  for (const auto& p : places)
    for (int64_t place : p) {
      std::copy_n(from, width, out.begin() + place * width);
      from += width;
    }
  return out;
}

}  // namespace

PackedMicroBatch::PackedMicroBatch(const CausalLM& model, std::span<const Trajectory* const> trajectories,
                                   const kernels::LogitBias* logit_bias)
    : model_(model), trajectories_(trajectories) {
  for (const Trajectory* t : trajectories) {
    if (t->temperature <= 0)
      throw ValueError(t->name() + ": sampled greedily: its log-probs are not those of a policy, so it cannot be trained on");
    std::vector<int32_t> ids = t->prompt_ids;
    ids.insert(ids.end(), t->response_ids.begin(), t->response_ids.end());
    offsets_.push_back(offsets_.back() + static_cast<int64_t>(t->response_ids.size()));
    sequence_offsets_.push_back(sequence_offsets_.back() + std::max<int64_t>(0, static_cast<int64_t>(ids.size()) - 1));
    ids_.push_back(std::move(ids));
  }
  const RankMesh* mesh = model.mesh();
  const int64_t cp = mesh ? mesh->cp.size() : 1, cp_rank = mesh ? mesh->cp.rank() : 0;
  const int64_t slices = mesh ? mesh->rows.size() / cp : 1;
  tokens_.resize(static_cast<size_t>(cp));
  std::vector<SequenceSpan> spans;
  std::vector<int64_t> index;
  for (int64_t rank = 0; rank < cp; ++rank) {
    std::vector<int64_t> fed;
    for (const ContextPiece& p :
         context_pieces(sequence_offsets_, cp, rank, mesh ? mesh->sharing.context_split : ContextSplit::kZigzag)) {
      const size_t s = static_cast<size_t>(p.sequence);
      if (rank == cp_rank) spans.push_back({ids_[s], p.begin, p.end});
      // The row that predicts response token 0.
      const int64_t before_first = static_cast<int64_t>(trajectories[s]->prompt_ids.size()) - 1;
      for (int64_t at = p.begin; at < p.end; ++at) {
        if (at >= before_first) {
          tokens_[static_cast<size_t>(rank)].push_back(offsets_[s] + at - before_first);
          if (rank == cp_rank) index.push_back(static_cast<int64_t>(fed.size()));
        }
        fed.push_back(sequence_offsets_[s] + at);
      }
    }
    for (int64_t slice = 0; slice < slices; ++slice) {
      const auto [begin, end] = slice_of_rows(static_cast<int64_t>(fed.size()), slices, slice);
      rows_.emplace_back(fed.begin() + begin, fed.begin() + end);
    }
    if (rank == cp_rank) fed_rows_ = std::move(fed);
  }
  batch_ = TokenBatch::pack(spans, model.config().history());
  head_index_ = at::empty({static_cast<int64_t>(index.size())}, at::kLong);
  std::copy(index.begin(), index.end(), head_index_.data_ptr<int64_t>());

  const kernels::LogitBias* bias = logit_bias && !logit_bias->ids.empty() ? logit_bias : nullptr;
  for (const int64_t token : tokens_[static_cast<size_t>(cp_rank)]) {
    const size_t s = static_cast<size_t>(sequence_of(offsets_, token));
    const Trajectory& t = *trajectories[s];
    const size_t j = static_cast<size_t>(token - offsets_[s]);
    const float inverse = 1.0f / static_cast<float>(t.temperature);  // the sampler's own expression
    kernels::HeadRow row{t.response_ids[j], inverse, nullptr, bias};
    if (!t.kept.empty() && !t.kept[j].is_all()) {
      auto kept = std::make_shared<kernels::KeptTokens>();
      kept->all = false;
      kept->ids = t.kept[j].ids(model.config().vocab_size);
      row.kept = kept.get();
      head_->owners.push_back(kept);
    }
    head_->rows.push_back(row);
  }
}

std::unique_ptr<nn::AttentionContext> PackedMicroBatch::attention() const {
  const RankMesh* mesh = model_.mesh();
  if (mesh && mesh->cp.size() > 1)
    return std::make_unique<ContextParallelAttention>(model_.attention_shape(), sequence_offsets_, mesh->cp,
                                                      mesh->sharing.context_split);
  return std::make_unique<nn::PackedAttention>(model_.attention_shape(), sequence_offsets_);
}

const std::vector<int64_t>& PackedMicroBatch::tokens() const {
  return tokens_[tokens_.size() == 1 ? 0 : static_cast<size_t>(model_.mesh()->cp.rank())];
}

std::vector<float> PackedMicroBatch::whole_tokens(const at::Tensor& own) const {
  const at::Tensor host = own.detach().to(at::kCPU).contiguous();
  const std::vector<float> mine(host.data_ptr<float>(), host.data_ptr<float>() + host.numel());
  if (tokens_.size() == 1) return mine;
  return gather_over(model_.mesh()->cp, mine, tokens_, 1, DType::kF32, "tokens");
}

at::Tensor PackedMicroBatch::own_tokens(const std::vector<double>& whole, const at::Device& device) const {
  const std::vector<int64_t>& own = tokens();
  at::Tensor t = at::empty({static_cast<int64_t>(own.size())}, at::kFloat);
  for (size_t i = 0; i < own.size(); ++i) t.data_ptr<float>()[i] = static_cast<float>(whole[static_cast<size_t>(own[i])]);
  return t.to(device);
}

const std::vector<int64_t>& PackedMicroBatch::own_rows() const {
  return rows_[rows_.size() == 1 ? 0 : static_cast<size_t>(model_.mesh()->rows.rank())];
}

RoutingBuffer PackedMicroBatch::empty_routes() const {
  const ModelConfig& c = model_.config();
  return RoutingBuffer::make(c.moe_layer_ids(), static_cast<int64_t>(own_rows().size()), c.moe.top_k);
}

RoutingBuffer PackedMicroBatch::recorded_routes() const {
  RoutingBuffer buffer = empty_routes();
  for (size_t i = 0; i < trajectories_.size(); ++i) {
    const Trajectory& t = *trajectories_[i];
    if (!t.routing) throw ValueError(t.name() + ": has no routing trace to replay");
    t.routing->validate(sequence_offsets_[i + 1] - sequence_offsets_[i], buffer.layers, t.name());
  }
  const std::vector<int64_t>& rows = own_rows();
  for (size_t r = 0; r < rows.size(); ++r) {
    const size_t s = static_cast<size_t>(sequence_of(sequence_offsets_, rows[r]));
    for (size_t l = 0; l < buffer.layers.size(); ++l)
      trajectories_[s]->routing->get(
          rows[r] - sequence_offsets_[s], static_cast<int64_t>(l),
          {buffer.at(static_cast<int64_t>(r), static_cast<int64_t>(l)), static_cast<size_t>(buffer.top_k)});
  }
  return buffer;
}

std::vector<RoutingTrace> PackedMicroBatch::traces(const RoutingBuffer& own) const {
  const ModelConfig& c = model_.config();
  RoutingBuffer all{own.layers, sequence_offsets_.back(), own.top_k, own.ids};
  if (rows_.size() > 1)
    all.ids = gather_over(model_.mesh()->rows, own.ids, rows_, static_cast<int64_t>(own.layers.size()) * own.top_k, DType::kI32,
                          "routes");
  std::vector<RoutingTrace> out;
  for (size_t i = 0; i + 1 < sequence_offsets_.size(); ++i) {
    RoutingTrace trace(sequence_offsets_[i + 1] - sequence_offsets_[i], all.layers, static_cast<int>(c.moe.top_k),
                       static_cast<int>(c.moe.num_experts));
    for (int64_t r = 0; r < trace.num_rows(); ++r)
      for (int64_t l = 0; l < trace.num_layers(); ++l)
        trace.set(r, l, {all.at(sequence_offsets_[i] + r, l), static_cast<size_t>(all.top_k)});
    out.push_back(std::move(trace));
  }
  return out;
}

}  // namespace weft
