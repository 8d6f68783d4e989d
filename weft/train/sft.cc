#include "weft/train/sft.h"

#include <cmath>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/signals.h"
#include "weft/base/trace.h"
#include "weft/parallel/fully_shard.h"
#include "weft/rollout/engine.h"
#include "weft/train/actor.h"
#include "weft/train/step_metrics.h"

namespace weft {
namespace {

LoadedModel open_model(const Recipe& r, const Registry& registry, std::shared_ptr<const RankMesh> mesh) {
  const std::optional<DType> dtype = r.actor.param_dtype == "auto" ? std::nullopt : parse_dtype(r.actor.param_dtype);
  if (r.model.init != "random") return load_model(r.model.path, dtype, r.trainer.device, registry.families, mesh, r.actor.plan);
  const HfConfig hf = HfConfig::load(r.model.path);
  return create_model(r.model.path, dtype.value_or(DType::kF32), hf.dtype.value_or(DType::kF32),
                      static_cast<uint64_t>(r.trainer.seed), r.trainer.device, registry.families, mesh, r.actor.plan);
}

std::optional<int32_t> end_id(const LoadedModel& m, const Tokenizer& tokenizer) {
  if (tokenizer.eos_id()) return tokenizer.eos_id();
  const auto ids = end_token_ids(m.hf, m.generation, nullptr);
  return ids.empty() ? std::nullopt : std::optional<int32_t>(ids.front());
}

double trained_tokens(std::span<const Trajectory* const> rows) {
  double n = 0;
  for (const Trajectory* t : rows)
    for (uint8_t m : t->response_mask) n += m;
  return n;
}

// Sum over trained tokens of -log p, in the order of the rows: the same bits however they were split.
double negative_log_likelihood(const std::vector<float>& log_probs, std::span<const Trajectory* const> rows) {
  double sum = 0;
  size_t token = 0;
  for (const Trajectory* t : rows)
    for (uint8_t m : t->response_mask) sum -= m ? log_probs[token] : 0.0, ++token;
  return sum;
}

}  // namespace

SftTrainer::SftTrainer(Recipe recipe, const Registry& registry, std::shared_ptr<const RankMesh> mesh)
    : recipe_(std::move(recipe)),
      ranks_(mesh),
      job_(mesh ? std::optional(mesh->world) : std::nullopt),
      model_(open_model(recipe_, registry, mesh)),
      tokenizer_(Tokenizer::load(model_.dir)) {
  train_ = std::make_unique<SftSource>(recipe_.data.train_files, recipe_, tokenizer_, end_id(model_, tokenizer_),
                                       recipe_.data.train_max_samples);
  if (!recipe_.data.val_files.empty())
    val_ = std::make_unique<SftSource>(recipe_.data.val_files, recipe_, tokenizer_, end_id(model_, tokenizer_),
                                       recipe_.data.val_max_samples);
  const int64_t batch = recipe_.data.train_batch_size;
  if (train_->size() < batch)
    throw UsageError(
        fmt::format("data.train_batch_size = {} rows, but data.train_files hold {}: lower it", batch, train_->size()));
  sampler_ = std::make_unique<DatasetSampler>(train_->size(), static_cast<uint64_t>(recipe_.data.seed), recipe_.data.shuffle);
  total_steps_ = recipe_.trainer.total_training_steps > 0 ? recipe_.trainer.total_training_steps
                                                          : recipe_.trainer.total_epochs * (train_->size() / batch);
  optimizer_ = std::make_unique<Optimizer>(model_.model->parameters(), recipe_.actor.optim, total_steps_,
                                           [this](std::vector<double>& sums) { ranks_.sum_over_shards(sums); });
}

void SftTrainer::run() {
  std::optional<std::string> from;
  if (recipe_.trainer.resume_mode == "auto")
    from = latest_checkpoint(checkpoints(), job_.world());
  else if (recipe_.trainer.resume_mode == "resume_path")
    from = recipe_.trainer.resume_from_path;
  if (from) {
    progress_ = load_checkpoint(*from, "sft", model_, *optimizer_);
    if (progress_.dataset_fingerprint != train_->dataset().fingerprint())
      throw ValueError(
          *from + ": was made with other data.train_files. Use trainer.resume_mode = \"disable\" and another trainer.run_name");
    sampler_->seek(progress_.cursor);
    if (job_.main()) log_info("going on from {} (step {})", *from, progress_.step);
  }
  progress_.dataset_fingerprint = train_->dataset().fingerprint();
  if (job_.main()) {
    run_dir_ = std::make_unique<RunDir>(recipe_, from ? std::optional<int64_t>(progress_.step) : std::nullopt);
    log_info("{}: {} with {:.2f} M parameters, {} rows, {} ranks", model_.dir, model_.model->config().family,
             static_cast<double>(model_.model->num_parameters()) / 1e6, train_->size(), job_.size());
    ProgressOptions options;
    options.start = progress_.step;
    bar_ = std::make_unique<Progress>("sft", total_steps_, "steps", options);
  }
  while (progress_.step < total_steps_) {
    try {
      step();
      if (ranks_.any(stop_requested()))
        throw StoppedError(fmt::format("stopped by {} after step {}", stop_signal_name(), progress_.step));
    } catch (const StoppedError& e) {
      save();
      if (job_.main()) run_dir_->write_report();
      throw StoppedError(fmt::format("{}; everything was saved in {}: run the same command to go on", e.what(), checkpoints()));
    }
  }
  if (!job_.main()) return;
  bar_->finish();
  run_dir_->write_report();
  log_info("report: {}/report.html", run_dir_->path());
}

void SftTrainer::step() {
  const TraceSpan span("step");
  const double waited = job_.seconds_waited();
  StepTimer timer;
  MetricsRow row;
  std::vector<const Trajectory*> rows;
  for (int64_t i : sampler_->next_batch(recipe_.data.train_batch_size)) rows.push_back(&train_->row(i));
  const double tokens = trained_tokens(rows);
  double aux = 0, fed = 0;
  ActorOptions options;
  options.recompute = recipe_.actor.recompute;
  options.router_aux = recipe_.actor.router_aux_loss_coef / static_cast<double>(rows.size());
  optimizer_->zero_grad();
  for (const Trajectory* t : rows) fed += static_cast<double>(t->num_tokens() - 1);
  const DataParallel::Share share = ranks_.share(rows, recipe_.actor.max_tokens_per_micro_batch);
  std::vector<float> mine;
  size_t left = share.micro_batches.size();
  for (const MicroBatch part : share.micro_batches) {
    set_requires_all_reduce(*model_.model, --left == 0);
    const ActorOutput out = actor_backward(*model_.model, part, options, [&](const ActorOutput&) {
      TokenGradients g;
      for (const Trajectory* t : part)
        for (uint8_t m : t->response_mask) g.log_probs.push_back(m ? -1.0 / tokens : 0.0);
      return g;
    });
    aux += out.router_aux;
    mine.insert(mine.end(), out.log_probs.begin(), out.log_probs.end());
    // The step is done again when the run goes on: its cursor and weights are those of the step before.
    if (ranks_.any(stop_requested()))
      throw StoppedError(fmt::format("stopped by {} in step {}", stop_signal_name(), progress_.step + 1));
  }
  const double loss = negative_log_likelihood(ranks_.gather_tokens(share, rows, mine), rows) / tokens;
  aux = ranks_.sum_over_places(aux);
  if (!std::isfinite(loss))
    throw ValueError(fmt::format("the loss of step {} is not finite: nothing was updated", progress_.step + 1));
  const double norm = optimizer_->grad_norm();
  row.set("sft/loss", loss);
  if (recipe_.actor.router_aux_loss_coef > 0) row.set("sft/router_aux_loss", options.router_aux * aux);
  row.set("actor/grad_norm", norm);
  row.set("actor/lr", optimizer_->update(norm));
  ++progress_.step;
  ++progress_.updates;
  progress_.cursor = sampler_->cursor();
  timer.mark("step", row);
  job_.report_wait_share(waited, row);
  row.set("perf/throughput", fed / std::max(1e-9, *row.find("timing_s/step")));
  const bool last = progress_.step == total_steps_;
  if (val_ && recipe_.trainer.test_freq > 0 && (progress_.step % recipe_.trainer.test_freq == 0 || last))
    row.set("sft/val_loss", validation_loss());
  if (job_.main()) {
    run_dir_->write_metrics(progress_.step, row);
    bar_->update(progress_.step, fmt::format("loss {:.4f}", loss));
  }
  if ((recipe_.trainer.save_freq > 0 && progress_.step % recipe_.trainer.save_freq == 0) || last) save();
}

double SftTrainer::validation_loss() {
  const TraceSpan span("validation");
  std::vector<const Trajectory*> rows;
  for (int64_t i = 0; i < val_->size(); ++i) rows.push_back(&val_->row(i));
  const DataParallel::Share share = ranks_.share(rows, recipe_.actor.max_tokens_per_micro_batch);
  std::vector<float> mine;
  for (const MicroBatch part : share.micro_batches) {
    const ActorOutput out = actor_forward(*model_.model, part, {});
    mine.insert(mine.end(), out.log_probs.begin(), out.log_probs.end());
  }
  return negative_log_likelihood(ranks_.gather_tokens(share, rows, mine), rows) / trained_tokens(rows);
}

void SftTrainer::save() {
  const TraceSpan span("checkpoint");
  progress_.command = "sft";
  save_checkpoint(checkpoints(), model_, *optimizer_, progress_, recipe_.trainer.max_ckpt_to_keep, nullptr,
                  recipe_.trainer.resume_from_path);
}

}  // namespace weft
