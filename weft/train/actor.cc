#include "weft/train/actor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "weft/base/error.h"
#include "weft/base/trace.h"
#include "weft/nn/autograd.h"
#include "weft/nn/view.h"
#include "weft/parallel/fully_shard.h"
#include "weft/train/router_aux.h"

namespace weft {
namespace {

// A micro-batch packed for one forward: all tokens but each trajectory's last, and the rows whose next token is a response token.
struct Packed {
  std::vector<std::vector<int32_t>> tokens;
  TokenBatch batch;
  std::shared_ptr<nn::HeadRows> head = std::make_shared<nn::HeadRows>();
  at::Tensor head_index;  // [R] rows of the batch
  std::vector<int64_t> offsets{0};
};

Packed pack(const CausalLM& model, std::span<const Trajectory* const> trajectories, const ActorOptions& options) {
  Packed p;
  const int64_t vocab = model.config().vocab_size;
  int64_t responses = 0;
  for (const Trajectory* t : trajectories) {
    if (t->temperature <= 0)
      throw ValueError(t->name() + ": sampled greedily: its log-probs are not those of a policy, so it cannot be trained on");
    std::vector<int32_t> ids = t->prompt_ids;
    ids.insert(ids.end(), t->response_ids.begin(), t->response_ids.end());
    p.tokens.push_back(std::move(ids));
    responses += static_cast<int64_t>(t->response_ids.size());
    p.offsets.push_back(responses);
  }
  std::vector<SequenceSpan> spans;
  for (const auto& ids : p.tokens) spans.push_back({ids, 0, std::max<int64_t>(0, static_cast<int64_t>(ids.size()) - 1)});
  p.batch = TokenBatch::pack(spans, model.config().history());
  p.head_index = at::empty({responses}, at::kLong);
  int64_t* index = p.head_index.data_ptr<int64_t>();
  const kernels::LogitBias* bias = options.logit_bias && !options.logit_bias->ids.empty() ? options.logit_bias : nullptr;
  for (size_t i = 0; i < trajectories.size(); ++i) {
    const Trajectory& t = *trajectories[i];
    const float inverse = 1.0f / static_cast<float>(t.temperature);  // the sampler's own expression
    const int64_t prompt = static_cast<int64_t>(t.prompt_ids.size());
    for (size_t j = 0; j < t.response_ids.size(); ++j) {
      *index++ = p.batch.offsets[i] + prompt + static_cast<int64_t>(j) - 1;
      kernels::HeadRow row{t.response_ids[j], inverse, nullptr, bias};
      if (!t.kept.empty() && !t.kept[j].is_all()) {
        auto kept = std::make_shared<kernels::KeptTokens>();
        kept->all = false;
        kept->ids = t.kept[j].ids(vocab);
        row.kept = kept.get();
        p.head->owners.push_back(kept);
      }
      p.head->rows.push_back(row);
    }
  }
  return p;
}

// The rows of the micro-batch's traces, in the order of the packed tokens. Fails closed.
RoutingBuffer routing_rows(const CausalLM& model, std::span<const Trajectory* const> trajectories, const Packed& p) {
  const ModelConfig& c = model.config();
  RoutingBuffer buffer = RoutingBuffer::make(c.moe_layer_ids(), p.batch.num_tokens(), c.moe.top_k);
  for (size_t i = 0; i < trajectories.size(); ++i) {
    const Trajectory& t = *trajectories[i];
    if (!t.routing) throw ValueError(t.name() + ": has no routing trace to replay");
    const int64_t rows = p.batch.offsets[i + 1] - p.batch.offsets[i];
    t.routing->validate(rows, buffer.layers, t.name());
    for (int64_t r = 0; r < rows; ++r)
      for (size_t l = 0; l < buffer.layers.size(); ++l)
        t.routing->get(r, static_cast<int64_t>(l), {buffer.at(p.batch.offsets[i] + r, static_cast<int64_t>(l)), static_cast<size_t>(buffer.top_k)});
  }
  return buffer;
}

void append_traces(const CausalLM& model, const Packed& p, const RoutingBuffer& buffer, std::vector<RoutingTrace>& out) {
  const ModelConfig& c = model.config();
  for (size_t i = 0; i + 1 < p.batch.offsets.size(); ++i) {
    RoutingTrace trace(p.batch.offsets[i + 1] - p.batch.offsets[i], buffer.layers, static_cast<int>(c.moe.top_k), static_cast<int>(c.moe.num_experts));
    for (int64_t r = 0; r < trace.num_rows(); ++r)
      for (int64_t l = 0; l < trace.num_layers(); ++l)
        trace.set(r, l, {buffer.at(p.batch.offsets[i] + r, l), static_cast<size_t>(buffer.top_k)});
    out.push_back(std::move(trace));
  }
}

std::vector<float> floats(const at::Tensor& t) {
  const at::Tensor host = t.detach().to(at::kCPU).contiguous();
  return {host.data_ptr<float>(), host.data_ptr<float>() + host.numel()};
}

at::Tensor tensor_of(const std::vector<double>& values, const at::Tensor& like) {
  at::Tensor t = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  for (size_t i = 0; i < values.size(); ++i) t.data_ptr<float>()[i] = static_cast<float>(values[i]);
  return t.to(like.device());
}

ActorOutput run(CausalLM& model, std::span<const Trajectory* const> trajectories, const ActorOptions& options,
                const std::function<TokenGradients(const ActorOutput&)>* loss) {
  const bool moe = model.config().has_moe();
  Packed p = pack(model, trajectories, options);
  ActorOutput out;
  out.offsets = p.offsets;
  nn::PackedAttention attention(model.attention_shape(), p.batch.offsets);
  LiveRouting live;
  RoutingBuffer buffer;
  std::unique_ptr<Routing> special;
  ReplayRouting* replay = nullptr;
  if (moe && options.replay) {
    buffer = routing_rows(model, trajectories, p);
    auto r = std::make_unique<ReplayRouting>(buffer);
    replay = r.get();
    special = std::move(r);
  } else if (moe && options.record) {
    buffer = RoutingBuffer::make(model.config().moe_layer_ids(), p.batch.num_tokens(), model.config().moe.top_k);
    special = std::make_unique<RecordRouting>(buffer);
  }
  AuxLossRouting* aux = nullptr;
  if (moe && loss && options.router_aux > 0) {
    WEFT_CHECK(!special && !options.recompute, "the auxiliary loss needs live routing without recompute");
    auto r = std::make_unique<AuxLossRouting>();
    aux = r.get();
    special = std::move(r);
  }
  Routing& routing = special ? *special : live;
  std::optional<TraceSpan> span(std::in_place, "forward");
  at::Tensor hidden = model.forward(p.batch, attention, routing, {options.recompute});
  if (replay) replay->check_consumed();
  if (moe && options.record) append_traces(model, p, buffer, *options.record);
  at::Tensor rows = at::index_select(hidden, 0, p.head_index.to(hidden.device()));
  nn::HeadOutput head = model.log_probs(model.final_norm(rows), p.head, options.entropy);
  out.log_probs = floats(head.log_probs);
  if (options.entropy) out.entropy = floats(head.entropy);
  span.reset();
  if (!loss) return out;

  const TokenGradients g = (*loss)(out);
  WEFT_CHECK(g.log_probs.size() == out.log_probs.size(), "{} gradients for {} tokens", g.log_probs.size(), out.log_probs.size());
  if (out.log_probs.empty() && shard_groups(model).empty()) return out;  // sharded: peers wait for this rank's part of the gradients
  std::vector<at::Tensor> roots{head.log_probs}, grads{tensor_of(g.log_probs, head.log_probs)};
  if (options.entropy && !g.entropy.empty()) {
    roots.push_back(head.entropy);
    grads.push_back(tensor_of(g.entropy, head.entropy));
  }
  if (aux) {
    if (at::Tensor total = aux->loss(p.batch.offsets); total.defined()) {
      out.router_aux = options.router_aux * total.item<double>();
      roots.push_back(total);
      grads.push_back(at::full({}, options.router_aux, total.options()));
    }
  }
  span.emplace("backward");
  nn::backward(roots, grads);
  return out;
}

}  // namespace

RouterReplayMode parse_router_replay(const std::string& name) {
  if (name == "disabled") return RouterReplayMode::kDisabled;
  if (name == "R2") return RouterReplayMode::kR2;
  if (name == "R3") return RouterReplayMode::kR3;
  throw UsageError(fmt::format("router_replay.mode = \"{}\": expected disabled, R2 or R3", name));
}

std::vector<MicroBatch> split_micro_batches(MicroBatch trajectories, int64_t max_tokens) {
  std::vector<MicroBatch> out;
  size_t begin = 0;
  int64_t tokens = 0;
  for (size_t i = 0; i < trajectories.size(); ++i) {
    const int64_t n = trajectories[i]->num_tokens() - 1;
    if (i > begin && tokens + n > max_tokens) {
      out.push_back(trajectories.subspan(begin, i - begin));
      begin = i;
      tokens = 0;
    }
    tokens += n;
  }
  if (begin < trajectories.size()) out.push_back(trajectories.subspan(begin));
  return out;
}

ActorOutput actor_forward(CausalLM& model, std::span<const Trajectory* const> trajectories, const ActorOptions& options) {
  at::NoGradGuard guard;
  return run(model, trajectories, options, nullptr);
}

ActorOutput actor_backward(CausalLM& model, std::span<const Trajectory* const> trajectories, const ActorOptions& options,
                           const std::function<TokenGradients(const ActorOutput&)>& loss) {
  at::AutoGradMode guard(true);
  return run(model, trajectories, options, &loss);
}

void ParityResult::merge(const ParityResult& other) {
  tokens += other.tokens, rows += other.rows;
  max_difference = std::max(max_difference, other.max_difference);
  unequal_tokens += other.unequal_tokens, unequal_rows += other.unequal_rows;
  if (first.empty()) first = other.first;
}

ParityResult check_parity(CausalLM& model, std::span<const Trajectory* const> trajectories, const ActorOptions& options,
                          int64_t max_tokens) {
  return check_parity(model, split_micro_batches(trajectories, max_tokens), options);
}

ParityResult check_parity(CausalLM& model, std::span<const MicroBatch> parts, const ActorOptions& options) {
  ParityResult result;
  for (const MicroBatch part : parts) {
    ActorOptions o = options;
    std::vector<RoutingTrace> traces;
    o.entropy = false;
    // The live router is asked even where a trace is replayed: equal routes are part of the promise.
    o.replay = false;
    o.record = model.config().has_moe() ? &traces : nullptr;
    const ActorOutput out = actor_forward(model, part, o);
    size_t token = 0;
    for (size_t i = 0; i < part.size(); ++i) {
      const Trajectory& t = *part[i];
      for (size_t j = 0; j < t.response_ids.size(); ++j, ++token) {
        const float ours = out.log_probs[token], theirs = t.rollout_log_probs[j];
        ++result.tokens;
        if (std::bit_cast<uint32_t>(ours) == std::bit_cast<uint32_t>(theirs)) continue;
        ++result.unequal_tokens;
        const double difference = std::fabs(static_cast<double>(ours) - theirs);
        result.max_difference = std::isnan(difference) ? INFINITY : std::max(result.max_difference, difference);
        if (result.first.empty())
          result.first = fmt::format("{}: response token {}: trainer {:.9g}, rollout {:.9g}", t.name(), j, ours, theirs);
      }
      if (!t.routing || traces.empty()) continue;
      const RoutingTrace &live = traces[i], &recorded = *t.routing;
      for (int64_t r = 0; r < live.num_rows(); ++r)
        for (int64_t l = 0; l < live.num_layers(); ++l) {
          ++result.rows;
          if (live.get(r, l) == recorded.get(r, l)) continue;
          ++result.unequal_rows;
          if (result.first.empty())
            result.first = fmt::format("{}: token {}, layer {}: trainer and rollout chose other experts", t.name(), r, live.layer_ids()[static_cast<size_t>(l)]);
        }
    }
  }
  return result;
}

}  // namespace weft
