#include "weft/train/critic.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>

#include <cmath>
#include <filesystem>

#include "weft/base/error.h"
#include "weft/base/trace.h"
#include "weft/nn/autograd.h"
#include "weft/parallel/fully_shard.h"
#include "weft/rl/value_loss.h"
#include "weft/train/mini_batch.h"
#include "weft/train/packed_micro_batch.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCommand = "critic";

// The critic's checkpoint of an actor's.
std::string beside(const std::string& actor_checkpoint) {
  const fs::path actor = fs::path(actor_checkpoint + "/").parent_path();  // with or without a slash at its end
  return (actor.parent_path() / "critic" / actor.filename()).string();
}

std::optional<DType> dtype_of(const Recipe& recipe) {
  return recipe.actor.param_dtype == "auto" ? std::nullopt : parse_dtype(recipe.actor.param_dtype);
}

ScoreOutput run(CausalLM& model, std::span<const Trajectory* const> trajectories, bool recompute,
                const std::function<std::vector<double>(const ScoreOutput&)>* loss) {
  const PackedMicroBatch p(model, trajectories, nullptr);
  const std::unique_ptr<nn::AttentionContext> attention = p.attention();
  LiveRouting routing;
  at::Tensor hidden = model.forward(p.batch(), *attention, routing, {recompute});
  at::Tensor scores = model.scores(model.final_norm(at::index_select(hidden, 0, p.head_index().to(hidden.device()))));
  ScoreOutput out{p.offsets(), p.whole_tokens(scores)};
  if (!loss) return out;
  const std::vector<double> grads = (*loss)(out);
  if (out.values.empty() && shard_groups(model).empty()) return out;  // sharded: peers wait for this rank's gradients
  nn::backward({scores}, {p.own_tokens(grads, scores.device())});
  return out;
}

// Rows of values [trajectory][response], of the whole list.
std::vector<std::vector<float>> forward_all(CausalLM& model, const DataParallel& ranks, MicroBatch list, int64_t max_tokens) {
  const DataParallel::Share share = ranks.share(list, max_tokens);
  std::vector<float> mine;
  for (const MicroBatch part : share.micro_batches) {
    const ScoreOutput o = score_forward(model, part);
    mine.insert(mine.end(), o.values.begin(), o.values.end());
  }
  const std::vector<float> all = ranks.gather_tokens(share, list, mine);
  std::vector<std::vector<float>> out;
  auto at = all.begin();
  for (const Trajectory* t : list) {
    out.emplace_back(at, at + std::ssize(t->response_ids));
    at += std::ssize(t->response_ids);
  }
  return out;
}

struct TokenData {
  std::vector<double> old, returns;
  std::vector<uint8_t> mask;
};

TokenData token_data(const StepData& data, std::span<const size_t> members) {
  TokenData d;
  for (size_t i : members) {
    d.old.insert(d.old.end(), data.values[i].begin(), data.values[i].end());
    d.returns.insert(d.returns.end(), data.returns[i].begin(), data.returns[i].end());
    d.mask.insert(d.mask.end(), data.masks[i].begin(), data.masks[i].end());
  }
  return d;
}

}  // namespace

ScoreOutput score_forward(CausalLM& model, std::span<const Trajectory* const> trajectories) {
  at::NoGradGuard guard;
  return run(model, trajectories, false, nullptr);
}

ScoreOutput score_backward(CausalLM& model, std::span<const Trajectory* const> trajectories, bool recompute,
                           const std::function<std::vector<double>(const ScoreOutput&)>& loss) {
  at::AutoGradMode guard(true);
  return run(model, trajectories, recompute, &loss);
}

CriticRole::CriticRole(const Recipe& recipe, const Registry& registry, std::shared_ptr<const RankMesh> mesh, int64_t steps,
                       const ModelArenas& memory)
    : recipe_(recipe),
      ranks_(mesh),
      model_(load_model(recipe.critic.path, dtype_of(recipe), recipe.trainer.device, registry.families, mesh, {},
                        ModelHead::kFreshScore, memory.parameters)) {
  const int64_t minis = (recipe.data.train_batch_size + recipe.actor.mini_batch_size - 1) / recipe.actor.mini_batch_size;
  optimizer_ =
      std::make_unique<Optimizer>(model_.model->parameters(), recipe.critic.optim, steps * minis * recipe.critic.ppo_epochs,
                                  [this](std::vector<double>& sums) { ranks_.sum_over_shards(sums); }, memory.optimizer);
}

std::vector<std::vector<float>> CriticRole::values(const std::vector<const Trajectory*>& trajectories) {
  const TraceSpan span("values");
  return forward_all(*model_.model, ranks_, trajectories, recipe_.actor.max_tokens_per_micro_batch);
}

MetricsRow CriticRole::update(const StepData& data) {
  const TraceSpan span("update_critic");
  const int64_t prompts = std::ssize(data.prompts), minis = mini_batches(recipe_, prompts);
  double loss_sum = 0, clipped = 0, tokens = 0, predicted = 0, norm = 0, lr = 0;
  const AggregationMode mode = parse_aggregation_mode(recipe_.critic.loss_agg_mode);
  for (int64_t u = 0; u < minis * recipe_.critic.ppo_epochs; ++u) {
    const std::vector<size_t> members = mini_batch_members(recipe_, data.step, prompts, u);
    std::vector<const Trajectory*> list;
    std::vector<int64_t> offsets{0};
    for (size_t i : members) {
      list.push_back(data.trajectories[i]);
      offsets.push_back(offsets.back() + std::ssize(list.back()->response_ids));
    }
    const TokenData whole = token_data(data, members);
    const Aggregation aggregation{
        mode, count_denominators({offsets, whole.mask}, static_cast<double>(recipe_.data.max_response_length))};
    const auto loss_of = [&](const std::vector<int64_t>& at, const std::vector<float>& values, const TokenData& d) {
      return value_loss({at, d.mask}, widen(values), d.old, d.returns, recipe_.critic.cliprange_value, aggregation);
    };
    optimizer_->zero_grad();
    const DataParallel::Share share = ranks_.share(list, recipe_.actor.max_tokens_per_micro_batch);
    std::vector<float> mine;
    size_t first = share.begin[share.mine], left = share.micro_batches.size();
    for (const MicroBatch part : share.micro_batches) {
      set_requires_all_reduce(*model_.model, --left == 0);
      const ScoreOutput out = score_backward(*model_.model, part, recipe_.critic.recompute, [&](const ScoreOutput& o) {
        return loss_of(o.offsets, o.values, token_data(data, std::span(members).subspan(first, part.size()))).grad;
      });
      first += part.size();
      mine.insert(mine.end(), out.values.begin(), out.values.end());
    }
    // Reported of the whole mini-batch: the same bits for any split.
    const std::vector<float> all = ranks_.gather_tokens(share, list, mine);
    const ValueLossResult result = loss_of(offsets, all, whole);
    if (!std::isfinite(result.loss))
      throw ValueError(fmt::format("the critic's loss of step {} is not finite: nothing was updated", data.step));
    loss_sum += result.loss, clipped += result.clipped, tokens += result.tokens;
    for (size_t t = 0; t < all.size(); ++t) predicted += whole.mask[t] ? all[t] : 0.0F;
    const double n = optimizer_->grad_norm();
    norm += n;
    lr = optimizer_->update(n);
    ++updates_;
  }
  MetricsRow row;
  const double updates = static_cast<double>(minis * recipe_.critic.ppo_epochs), t = std::max(1.0, tokens);
  const double figures[] = {loss_sum / updates, clipped / t, predicted / t, norm / updates, lr};
  for (size_t i = 0; i < std::size(kCriticMetrics); ++i) row.set(kCriticMetrics[i], figures[i]);
  return row;
}

void CriticRole::save(const std::string& checkpoints_dir, int64_t step, int64_t max_keep, const std::string& spare) {
  TrainProgress progress;
  progress.command = kCommand;
  progress.step = step;
  progress.updates = updates_;
  save_checkpoint(checkpoints_dir + "/critic", model_, *optimizer_, progress, max_keep < 1 ? max_keep : max_keep + 1, nullptr,
                  spare.empty() ? "" : beside(spare));
}

void CriticRole::load(const std::string& actor_checkpoint, int64_t step) {
  const std::string path = beside(actor_checkpoint);
  const TrainProgress p = load_checkpoint(path, kCommand, model_, *optimizer_);
  if (p.step != step)
    throw FileError(path, "", fmt::format("is the critic of step {}, the actor's checkpoint is of step {}", p.step, step));
  updates_ = p.updates;
}

RewardModel::RewardModel(const Recipe& recipe, const Registry& registry, std::shared_ptr<const RankMesh> mesh,
                         const ModelArenas& memory)
    : recipe_(recipe),
      ranks_(mesh),
      model_(load_model(recipe.reward_model.path, dtype_of(recipe), recipe.trainer.device, registry.families, mesh, {},
                        ModelHead::kScore, memory.parameters)) {
  for (nn::Parameter* p : model_.model->parameters()) p->set_trainable(false);
}

std::vector<float> RewardModel::scores(const std::vector<const Trajectory*>& trajectories) {
  const TraceSpan span("reward_model");
  // One token more, which is not fed: the row before it is the last token's.
  std::vector<Trajectory> longer;
  std::vector<const Trajectory*> list;
  for (const Trajectory* t : trajectories) {
    Trajectory copy;
    copy.prompt_ids = t->prompt_ids;
    copy.response_ids = t->response_ids;
    copy.response_ids.push_back(0);
    copy.dataset_row = t->dataset_row, copy.sample_index = t->sample_index;
    longer.push_back(std::move(copy));
  }
  for (const Trajectory& t : longer) list.push_back(&t);
  std::vector<float> out;
  for (const std::vector<float>& values : forward_all(*model_.model, ranks_, list, recipe_.actor.max_tokens_per_micro_batch))
    out.push_back(values.back());
  return out;
}

}  // namespace weft
