#include "weft/model/causal_lm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/math.h"
#include "weft/base/random.h"
#include "weft/nn/autograd.h"
#include "weft/nn/embedding.h"
#include "weft/nn/linear.h"
#include "weft/nn/view.h"
#include "weft/parallel/fully_shard.h"
#include "weft/parallel/tensor_parallel.h"
#include "weft/parallel/vocab_parallel.h"

namespace weft {

CausalLM::CausalLM(ModelConfig config, at::ScalarType param_dtype)
    : Module(""), config_(std::move(config)), param_dtype_(param_dtype), device_(at::kCPU) {
  const ModelConfig& c = config_;
  embed_tokens_ = add_parameter("model.embed_tokens.weight", {c.vocab_size, c.hidden_size});
  if (c.over_encoding) {
    const int64_t tables = over_encoding_tables(*c.over_encoding), width = c.hidden_size / tables;
    for (int64_t e = 0; e < tables; ++e)
      over_tables_.push_back(add_parameter(fmt::format("model.over_encoded_embeddings.embedding_list.{}.weight", e),
                                           {over_encoding_rows(*c.over_encoding, c.vocab_size, e), width}));
    for (int64_t e = 0; e < tables; ++e)
      over_projections_.push_back(
          add_parameter(fmt::format("model.over_encoded_embeddings.projection_list.{}.weight", e), {c.hidden_size, width}));
  }
  for (int64_t i = 0; i < c.num_layers; ++i)
    layers_.push_back(add_module<DecoderLayer>(fmt::format("model.layers.{}", i), config_, i));
  norm_ = add_parameter("model.norm.weight", {c.hidden_size}, nn::Precision::kFp32);
  head_ = c.score_head ? add_parameter("score.weight", {1, c.hidden_size})
          : c.tied     ? embed_tokens_
                       : add_parameter("lm_head.weight", {c.vocab_size, c.hidden_size});
  for (nn::Parameter* p : parameters()) by_name_[p->name()] = p;
}

void CausalLM::materialize(const at::Device& device) {
  device_ = device;
  for (nn::Parameter* p : parameters()) p->materialize(device, param_dtype_);
}

void CausalLM::set_memory(const nn::ParameterMemory& memory) {
  for (nn::Parameter* p : parameters()) p->set_memory(memory);
}

int64_t CausalLM::panel_bytes() const {
  int64_t sum = 0;
  for (const nn::Parameter* p : parameters()) {
    // Tables are looked up, not multiplied with.
    const bool table = (p == embed_tokens_ && head_ != p) || std::find(over_tables_.begin(), over_tables_.end(), p) != over_tables_.end();
    const std::vector<int64_t>& s = p->compute_shape();
    if (p->sharded() || table || s.size() < 2) continue;
    const DType dtype = p->row_scales().defined()                      ? DType::kI8
                        : p->compute_dtype(param_dtype_) == at::kFloat ? DType::kF32
                                                                       : DType::kBF16;
    sum += kernels::packed_weight_bytes(dtype, s.size() == 3 ? s[0] : 1, s[s.size() - 2], s.back());
  }
  return sum;
}

nn::AttentionShape CausalLM::attention_shape() const {
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  // Heads of this rank; with more ranks than key/value heads neighbours share one.
  const auto heads = [&](const char* name) {
    return layers_.empty()
               ? 1
               : find_parameter(fmt::format("model.layers.0.self_attn.{}.weight", name))->compute_shape()[0] / config_.head_dim;
  };
  return {heads("q_proj"), heads("k_proj"), config_.head_dim, scale};
}

nn::Parameter* CausalLM::find_parameter(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

int64_t CausalLM::num_parameters() const {
  int64_t n = 0;
  for (const auto& [name, p] : by_name_) n += p->numel();
  return n;
}

at::Tensor CausalLM::over_rows(const at::Tensor& index, nn::Parameter& table) {
  if (!mesh_) return nn::embedding(index, table);
  const Communicator& oe = mesh_->along(mesh_->dims.view_mesh("oe"), "oe");
  const auto rows = [&](const at::Tensor& i) {
    return oe.size() > 1 && table.compute_shape() != table.shape() ? exchanged_embedding(i, table, oe) : nn::embedding(i, table);
  };
  if (mesh_->tp.size() == 1) return rows(index);
  return gather_rows(rows(slice_rows(index, mesh_->tp)), index.size(0), mesh_->tp);  // every tp rank has all tokens
}

at::Tensor CausalLM::embed(const TokenBatch& batch) {
  const bool cut = embed_tokens_->compute_shape() != embed_tokens_->shape();
  at::Tensor x = cut ? vocab_embedding(batch.ids, *embed_tokens_, mesh_->tp) : nn::embedding(batch.ids, *embed_tokens_);
  if (!config_.over_encoding) return x;
  // The mean of the word embedding and each projected n-gram embedding; row of table e for position t:
  // (sum over d = 0..n-1 of token[t-d] * V^d) mod rows_e, n = e / split + 2.
  const OverEncodingConfig& c = *config_.over_encoding;
  const int64_t tokens = batch.num_tokens(), history = config_.history();
  const int32_t *ids = batch.ids.data_ptr<int32_t>(), *before = batch.history.data_ptr<int32_t>();
  for (size_t e = 0; e < over_tables_.size(); ++e) {
    const int64_t rows = over_tables_[e]->shape()[0], order = static_cast<int64_t>(e) / c.emb_split_num + 2;
    at::Tensor index = at::empty({tokens}, batch.ids.options());
    for (int64_t t = 0; t < tokens; ++t) {
      int64_t row = ids[t] % rows, power = 1;
      for (int64_t d = 1; d < order; ++d) {
        power = power * config_.vocab_size % rows;
        row = (row + before[t * history + d - 1] * power) % rows;
      }
      index.data_ptr<int32_t>()[t] = static_cast<int32_t>(row);
    }
    at::Tensor part = nn::to_dtype(over_rows(index, *over_tables_[e]), param_dtype_);
    x = nn::add(x, nn::linear(part, *over_projections_[e], nullptr, at::kFloat));
  }
  return nn::scale(x, 1.0f / static_cast<float>(over_tables_.size() + 1));
}

at::Tensor CausalLM::forward(const TokenBatch& batch, nn::AttentionContext& attention, Routing& routing, ForwardOptions options) {
  return run([&] {
    ForwardContext ctx{
        &attention,   &routing,    nn::rope_table(batch.positions, config_.inv_freq, config_.rope_attention_factor, device_),
        param_dtype_, mesh_.get(), batch.num_tokens()};
    at::Tensor x = embed(batch);
    if (ctx.sequence_parallel()) x = slice_rows(x, *ctx.tp());
    for (DecoderLayer* layer : layers_) {
      if (options.recompute)
        x = nn::recompute(x, [layer, ctx](const at::Tensor& in) mutable { return layer->forward(in, ctx); });
      else
        x = layer->forward(x, ctx);
    }
    if (ctx.sequence_parallel()) x = gather_rows(x, ctx.rows, *ctx.tp());
    return x;
  });
}

at::Tensor CausalLM::final_norm(const at::Tensor& x) {
  return nn::rms_norm(x, *norm_, config_.norm_eps, param_dtype_, false).rounded;
}

at::Tensor CausalLM::scores(const at::Tensor& normed) {
  WEFT_CHECK(config_.score_head, "a model without a score head");
  return nn::linear(normed, *head_, nullptr, at::kFloat).reshape({normed.size(0)});
}

at::Tensor CausalLM::logits(const at::Tensor& normed) {
  at::NoGradGuard guard;
  if (head_->compute_shape() != head_->shape()) return vocab_logits(normed, *head_, mesh_->tp);
  return nn::linear(normed, *head_, nullptr, at::kFloat);
}

nn::HeadOutput CausalLM::log_probs(const at::Tensor& normed, std::shared_ptr<const nn::HeadRows> rows, bool want_entropy) {
  if (head_->compute_shape() != head_->shape()) return vocab_log_probs(normed, *head_, std::move(rows), want_entropy, mesh_->tp);
  return nn::head_log_probs(normed, *head_, std::move(rows), want_entropy);
}

void init_weights(CausalLM& model, uint64_t seed) {
  constexpr float kStd = 0.02f;
  for (nn::Parameter* p : model.parameters()) {
    const bool norm = p->dim() == 1 && p->name().find("norm") != std::string::npos;
    at::Tensor host = at::empty(p->local_shape(), at::kFloat);
    uint64_t key = seed;
    for (char ch : p->name()) key = hash_combine(key, static_cast<uint64_t>(static_cast<unsigned char>(ch)));
    const CounterRng rng(key);
    if (p->dim() == 1) host.fill_(norm ? 1.0f : 0.0f);
    // Numbered by the element's place in the whole parameter, so that every rank draws its own.
    for (const LocalBox& part : p->dim() == 1 ? std::vector<LocalBox>() : local_boxes(*p)) {
      at::Tensor there = host;
      for (size_t d = 0; d < part.box.size.size(); ++d)
        there = there.narrow(static_cast<int64_t>(d), part.local_offset[d], part.box.size[d]);
      at::Tensor values = at::empty(part.box.size, at::kFloat);
      std::vector<int64_t> index = part.box.offset;
      for (int64_t i = 0; i < values.numel(); ++i) {
        int64_t flat = 0;
        for (size_t d = 0; d < index.size(); ++d) flat = flat * p->shape()[d] + index[d];
        values.data_ptr<float>()[i] = kStd * static_cast<float>(rng.normal(static_cast<uint64_t>(flat)));
        for (size_t d = index.size(); d-- > 0;) {
          if (++index[d] < part.box.offset[d] + part.box.size[d]) break;
          index[d] = part.box.offset[d];
        }
      }
      there.copy_(values);
    }
    at::NoGradGuard guard;
    p->master().copy_(host);
    p->updated();
  }
}

}  // namespace weft
