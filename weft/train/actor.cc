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
#include "weft/train/packed_micro_batch.h"
#include "weft/train/router_aux.h"

namespace weft {
namespace {

ActorOutput run(CausalLM& model, std::span<const Trajectory* const> trajectories, const ActorOptions& options,
                const std::function<TokenGradients(const ActorOutput&)>* loss) {
  const bool moe = model.config().has_moe();
  const PackedMicroBatch p(model, trajectories, options.logit_bias);
  ActorOutput out;
  out.offsets = p.offsets();
  const std::unique_ptr<nn::AttentionContext> attention = p.attention();
  LiveRouting live;
  RoutingBuffer buffer;
  std::unique_ptr<Routing> special;
  ReplayRouting* replay = nullptr;
  if (moe && options.replay) {
    buffer = p.recorded_routes();
    auto r = std::make_unique<ReplayRouting>(buffer);
    replay = r.get();
    special = std::move(r);
  } else if (moe && options.record) {
    buffer = p.empty_routes();
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
  at::Tensor hidden = model.forward(p.batch(), *attention, routing, {options.recompute});
  if (replay) replay->check_consumed();
  if (moe && options.record)
    for (RoutingTrace& trace : p.traces(buffer)) options.record->push_back(std::move(trace));
  at::Tensor rows = at::index_select(hidden, 0, p.head_index().to(hidden.device()));
  nn::HeadOutput head = model.log_probs(model.final_norm(rows), p.head(), options.entropy);
  out.log_probs = p.whole_tokens(head.log_probs);
  if (options.entropy) out.entropy = p.whole_tokens(head.entropy);
  span.reset();
  if (!loss) return out;

  const TokenGradients g = (*loss)(out);
  WEFT_CHECK(g.log_probs.size() == out.log_probs.size(), "{} gradients for {} tokens", g.log_probs.size(), out.log_probs.size());
  if (out.log_probs.empty() && shard_groups(model).empty())
    return out;  // sharded: peers wait for this rank's part of the gradients
  std::vector<at::Tensor> roots{head.log_probs}, grads{p.own_tokens(g.log_probs, head.log_probs.device())};
  if (options.entropy && !g.entropy.empty()) {
    roots.push_back(head.entropy);
    grads.push_back(p.own_tokens(g.entropy, head.entropy.device()));
  }
  if (aux) {
    const AuxLossRouting::Loss total =
        aux->loss(p.sequence_offsets(), p.own_rows(), model.mesh() ? &model.mesh()->rows : nullptr);
    out.router_aux = total.value;
    if (total.terms.defined()) {
      roots.push_back(total.terms);
      grads.push_back(at::full({}, options.router_aux, total.terms.options()));
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
            result.first = fmt::format("{}: token {}, layer {}: trainer and rollout chose other experts", t.name(), r,
                                       live.layer_ids()[static_cast<size_t>(l)]);
        }
    }
  }
  return result;
}

}  // namespace weft
