#include "weft/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/random.h"
#include "weft/base/signals.h"
#include "weft/base/threads.h"
#include "weft/base/trace.h"
#include "weft/rl/grpo.h"
#include "weft/rl/kl.h"
#include "weft/train/evaluate.h"
#include "weft/train/sample_details.h"
#include "weft/train/step_advantages.h"
#include "weft/train/step_data.h"
#include "weft/train/step_metrics.h"
#include "weft/train/update.h"

namespace weft {
namespace {

constexpr const char* kCommand = "train";
// progress.values: a stop came while this step's weights were validated.
constexpr const char* kValidationDue = "validation_due";
// StepUnderWay::sums: metrics of the step that its remaining updates cannot compute again.
constexpr std::string_view kMetricPrefix = "metric/";
// What else a step under way needs: batches of prompts taken from the data, rewards of greedy responses.
constexpr const char* kBatches = "batches";
constexpr std::string_view kBaselinePrefix = "baseline/";

}  // namespace

std::unique_ptr<RewardSet> make_rewards(const Recipe& recipe, const Registry& registry) {
  RewardProcessOptions options;
  options.python = recipe.reward.python;
  options.processes = recipe.reward.workers > 0 ? recipe.reward.workers : num_threads();
  options.time_limit_s = recipe.reward.timeout;
  std::vector<RewardSet::Entry> entries;
  for (const std::string& spec : recipe.reward.funcs)
    entries.push_back({registry.rewards.make(spec, options), recipe.reward.weights.at(entries.size())});
  if (!recipe.reward.command.empty())
    entries.push_back({make_command_reward("command", recipe.reward.command, options), recipe.reward.weights.at(entries.size())});
  return std::make_unique<RewardSet>(std::move(entries), recipe.reward.on_nan == "drop" ? OnNan::kDrop : OnNan::kStop);
}

std::unique_ptr<Engine> make_engine(const Recipe& recipe, const ModelFiles& files, CausalLM& model, const Tokenizer& tokenizer,
                                    bool record_routing) {
  EngineConfig c;
  c.max_num_seqs = recipe.rollout.max_num_seqs;
  c.max_num_batched_tokens = recipe.rollout.max_num_batched_tokens;
  c.block_size = recipe.rollout.block_size;
  c.kv_cache_tokens = recipe.rollout.kv_cache_tokens;
  c.end_ids = end_token_ids(files.hf, files.generation, &tokenizer);
  c.record_routing = record_routing;
  c.running = recipe.rollout.running == "keep"    ? RunningRequests::kKeep
              : recipe.rollout.running == "abort" ? RunningRequests::kAbort
                                                  : RunningRequests::kPause;
  return std::make_unique<Engine>(model, c, &tokenizer);
}

Trainer::Trainer(Recipe recipe, const Registry& registry, Roles roles)
    : recipe_(std::move(recipe)),
      registry_(registry),
      roles_(std::move(roles)),
      job_(roles_.world, roles_.places.actor.ranks[0]),
      ranks_(roles_.actor),
      reference_ranks_(roles_.reference),
      arenas_(recipe_),
      dtype_(recipe_.actor.param_dtype == "auto" ? std::nullopt : parse_dtype(recipe_.actor.param_dtype)),
      files_(read_model_files(recipe_.model.path, registry.families)),
      replay_(parse_router_replay(recipe_.router_replay_mode)) {
  if (recipe_.trainer.parity == "auto") recipe_.trainer.parity = parity_promised() ? "require" : "report";
  add_memory();
  if (roles_.is_actor())
    actor_ = std::make_unique<LoadedModel>(
        recipe_.model.init == "random" ? create_model(recipe_.model.path, dtype_.value_or(DType::kF32),
                                                      dtype_.value_or(DType::kF32), static_cast<uint64_t>(recipe_.trainer.seed),
                                                      recipe_.trainer.device, registry.families, roles_.actor, recipe_.actor.plan,
                                                      arenas_.actor.parameters)
                                       : load_model(recipe_.model.path, dtype_, recipe_.trainer.device, registry.families,
                                                    roles_.actor, recipe_.actor.plan, ModelHead::kVocabulary,
                                                    arenas_.actor.parameters));
  tokenizer_ = Tokenizer::load(files_.dir);
  if (replay_ != RouterReplayMode::kDisabled && !files_.config.has_moe())
    throw UsageError(
        fmt::format("router_replay.mode = \"{}\": {} has no experts: use \"disabled\"", recipe_.router_replay_mode, files_.dir));
  train_ = std::make_unique<PromptSource>(recipe_.data.train_files, recipe_, *tokenizer_, recipe_.data.train_max_samples);
  if (!recipe_.data.val_files.empty())
    val_ = std::make_unique<PromptSource>(recipe_.data.val_files, recipe_, *tokenizer_, recipe_.data.val_max_samples);
  if (const int64_t positions = files_.config.max_position_embeddings; recipe_.data.max_response_length >= positions)
    throw UsageError(fmt::format("data.max_response_length = {} leaves no room for a prompt: {} has {} positions; lower it",
                                 recipe_.data.max_response_length, files_.dir, positions));
  const int64_t batch = recipe_.data.train_batch_size, rows = static_cast<int64_t>(train_->rows().size());
  if (rows < batch)
    throw UsageError(fmt::format("data.train_batch_size = {} prompts, but data.train_files hold {}: lower it", batch, rows));
  sampler_ = std::make_unique<DatasetSampler>(rows, static_cast<uint64_t>(recipe_.data.seed), recipe_.data.shuffle);
  total_steps_ = recipe_.trainer.total_training_steps > 0 ? recipe_.trainer.total_training_steps
                                                          : recipe_.trainer.total_epochs * (rows / batch);
  rewards_ = make_rewards(recipe_, registry);
  if (actor_) {
    const int64_t minis = (batch + recipe_.actor.mini_batch_size - 1) / recipe_.actor.mini_batch_size;
    optimizer_ = std::make_unique<Optimizer>(
        actor_->model->parameters(), recipe_.actor.optim, total_steps_ * minis * recipe_.actor.ppo_epochs,
        [this](std::vector<double>& sums) { ranks_.sum_over_shards(sums); }, arenas_.actor.optimizer);
  }
  if (recipe_.needs_reference()) reference_ = load_frozen(recipe_.reference.path, arenas_.reference);
  if (!recipe_.teacher_path.empty()) teacher_ = load_frozen(recipe_.teacher_path, arenas_.teacher);
  if (recipe_.needs_critic() && roles_.is_critic())
    critic_ = std::make_unique<CriticRole>(recipe_, registry, roles_.critic, total_steps_, arenas_.critic);
  settle_memory();
  if (!recipe_.reward_model.path.empty() && roles_.is_reward_model())
    reward_model_ = std::make_unique<RewardModel>(recipe_, registry, roles_.reward_model, arenas_.reward_model);
  settle_memory();
  for (const auto& [key, path, size] :
       {std::tuple("critic.path", &recipe_.critic.path, critic_ ? critic_->vocab_size() : files_.config.vocab_size),
        {"reward_model.path", &recipe_.reward_model.path,
         reward_model_ ? reward_model_->vocab_size() : files_.config.vocab_size}})
    if (size != files_.config.vocab_size)
      throw UsageError(fmt::format("{} = \"{}\" has {} vocabulary entries, {} has {}: they cannot share token ids", key, *path,
                                   size, files_.dir, files_.config.vocab_size));
  std::vector<std::string> names = rewards_->names();
  if (!recipe_.reward_model.path.empty()) names.push_back(kModelReward);
  const std::string& metric = recipe_.algorithm.filter_groups.metric;
  if (recipe_.algorithm.filter_groups.enable && metric != "reward" &&
      std::find(names.begin(), names.end(), metric) == names.end())
    throw UsageError(fmt::format("algorithm.filter_groups.metric = \"{}\": the rewards are {}", metric, fmt::join(names, ", ")));
  rollout_ =
      std::make_unique<RolloutRole>(recipe_, files_.config, dtype() == DType::kF32 ? at::kFloat : at::kBFloat16,
                                    actor_ ? actor_->model.get() : nullptr, roles_, [this](CausalLM& model) {
                                      return make_engine(recipe_, files_, model, *tokenizer_,
                                                         replay_ == RouterReplayMode::kR3 || recipe_.trainer.parity == "require");
                                    },
                                    arenas_.rollout);
  rollout_->on_refit_progress([this](int64_t done, int64_t of) {
    if (done < of) note(fmt::format("step {}: refit {}/{}", progress_.step, done, of));
  });
  plan_memory();
  refit_rollout();
  for (const auto& [id, bias] : training_params(recipe_).logit_bias)
    logit_bias_.ids.push_back(id), logit_bias_.values.push_back(bias);
  kl_coef_ = recipe_.algorithm.kl_ctrl.kl_coef;
}

Trainer::~Trainer() = default;

// Token ids must mean the same to it.
std::unique_ptr<LoadedModel> Trainer::load_frozen(const std::string& path, const ModelArenas& memory) const {
  if (!roles_.is_reference()) return nullptr;
  auto model =
      std::make_unique<LoadedModel>(load_model(path, dtype_, recipe_.trainer.device, registry_.families, roles_.reference, {},
                                               ModelHead::kVocabulary, memory.parameters));
  for (nn::Parameter* p : model->model->parameters()) p->set_trainable(false);
  const int64_t ours = files_.config.vocab_size, theirs = model->config.vocab_size;
  if (ours != theirs)
    throw UsageError(fmt::format("{} has {} vocabulary entries, {} has {}: they cannot share token ids", model->dir, theirs,
                                 files_.dir, ours));
  if (model->dir == files_.dir) return model;
  if (!std::filesystem::exists(model->dir + "/tokenizer.json")) {
    if (job_.main()) log_warn("{} has no tokenizer.json: taking its token ids for those of {}", model->dir, files_.dir);
    return model;
  }
  const Tokenizer other = Tokenizer::load(model->dir);
  const auto spelling = [](const Tokenizer& t, int32_t id) { return t.decode(std::vector<int32_t>{id}, false); };
  for (int32_t id = 0; id < static_cast<int32_t>(std::max(other.vocab_size(), tokenizer_->vocab_size())); ++id)
    if (spelling(other, id) != spelling(*tokenizer_, id))
      throw UsageError(fmt::format("{} and {} have different tokenizers: token {} is \"{}\" in one and \"{}\" in the other",
                                   model->dir, files_.dir, id, spelling(other, id), spelling(*tokenizer_, id)));
  return model;
}

// Trainer and rollout share weights, kernels and param_dtype here; R2 replays what the old-log-prob pass records, so it needs the
// pass.
bool Trainer::parity_promised() const {
  const bool same = recipe_.rollout.dtype == "auto" || recipe_.rollout.dtype == dtype_name(dtype());
  return recipe_.trainer.device == "cpu" && replay_ != RouterReplayMode::kR2 && same;
}

DType Trainer::dtype() const {
  return dtype_.value_or(recipe_.model.init == "random" ? DType::kF32 : files_.hf.dtype.value_or(DType::kF32));
}

void Trainer::refit_rollout() {
  enter(Phase::kRefit);
  for (int attempt = 0;; ++attempt) {
    try {
      refit_report_ = rollout_->refit(progress_.weight_version);
      arenas_.memory.refitted();
      return;
    } catch (const RefitError& e) {
      ++refit_failures_;
      if (attempt == 1) throw;
      if (job_.main()) log_error("{}; doing it once more", e.what());
    }
  }
}

void Trainer::note(const std::string& text) {
  if (bar_) bar_->update(progress_.step, text);
}

ActorOptions Trainer::actor_options(bool replay) const {
  ActorOptions o;
  o.recompute = recipe_.actor.recompute;
  o.replay = replay;
  o.logit_bias = &logit_bias_;
  return o;
}

bool Trainer::resume() {
  std::optional<std::string> from;
  if (recipe_.trainer.resume_mode == "auto")
    from = latest_checkpoint(checkpoints(), job_.world());
  else if (recipe_.trainer.resume_mode == "resume_path")
    from = recipe_.trainer.resume_from_path;
  if (from) {
    progress_ = load_progress(*from, kCommand, job_.world());
    enter(Phase::kSave);
    if (actor_) load_checkpoint(*from, kCommand, *actor_, *optimizer_);
    if (recipe_.needs_critic()) enter(Phase::kSaveCritic);
    if (critic_) critic_->load(*from, progress_.step);
    if (progress_.dataset_fingerprint != train_->dataset().fingerprint())
      throw ValueError(
          *from +
          ": was made with other data.train_files: its position in the data means nothing here. Use trainer.resume_mode = "
          "\"disable\" and another trainer.run_name to start anew");
    sampler_->seek(progress_.cursor);
    if (recipe_.algorithm.kl_ctrl.type == "adaptive" && progress_.values.count("kl_coef"))
      kl_coef_ = progress_.values.at("kl_coef");
    refit_rollout();
    if (job_.main()) log_info("going on from {} (step {})", *from, progress_.step);
  }
  progress_.dataset_fingerprint = train_->dataset().fingerprint();
  if (job_.main()) run_dir_ = std::make_unique<RunDir>(recipe_, from ? std::optional<int64_t>(progress_.step) : std::nullopt);
  return from.has_value();
}

void Trainer::run() {
  const bool resumed = resume();
  if (job_.main()) announce();
  const bool due = progress_.values.erase(kValidationDue) > 0;
  if (val_ && (due || (!resumed && recipe_.trainer.val_before_train))) {
    validate_now();
    if (due) save(nullptr);  // the checkpoint no longer asks for it
  }
  while (progress_.step < total_steps_) step();
  if (!job_.main()) return;
  bar_->finish();
  run_dir_->write_report();
  log_info("report: {}/report.html", run_dir_->path());
}

void Trainer::announce() {
  const ModelConfig& c = actor_->config;
  log_info("{}: {} with {:.1f} M parameters, param_dtype {}, {} threads", actor_->dir, c.family,
           static_cast<double>(actor_->model->num_parameters()) / 1e6,
           actor_->model->param_dtype() == at::kFloat ? "float32" : "bfloat16", num_threads());
  log_info("end token ids: {}", fmt::join(end_token_ids(files_.hf, files_.generation, &*tokenizer_), ", "));
  if (!train_->ground_truth_key().empty()) log_info("ground truth: {}", train_->ground_truth_key());
  if (train_->num_filtered() > 0) log_info("{} overlong prompts left out", train_->num_filtered());
  ProgressOptions options;
  options.start = progress_.step;
  bar_ = std::make_unique<Progress>("train", total_steps_, "steps", options);
  if (progress_.step >= total_steps_) log_info("nothing to do: step {} of {}", progress_.step, total_steps_);
  if (!roles_.world) return;
  const RolePlaces& p = roles_.places;
  log_info("{} ranks: {}", job_.size(), p.actor.dims.to_string());
  log_info("rollout on {}{}", rollout_text(p.rollout.dims),
           p.colocated()
               ? std::string()
               : fmt::format(", ranks {}; actor on ranks {}", fmt::join(p.rollout.ranks, ","), fmt::join(p.actor.ranks, ",")));
}

void Trainer::step() {
  const TraceSpan span("step");
  StepTimer timer;
  MetricsRow row;
  StepData data;
  data.step = progress_.step + 1;
  const DatasetCursor before = sampler_->cursor();
  const std::map<std::string, double> received = job_.received_bytes();
  const double waited = job_.seconds_waited();
  const bool resumed = progress_.under_way.has_value();
  progress_.cursor = before;
  try {
    if (resumed) {
      StepUnderWay& u = *progress_.under_way;
      const size_t n = static_cast<size_t>(recipe_.rollout.n);
      const auto batches = u.sums.find(kBatches);
      data.batches = batches != u.sums.end() ? static_cast<int64_t>(batches->second) : 1;
      for (int64_t i = 0; i < data.batches; ++i) sampler_->next_batch(recipe_.data.train_batch_size);
      if (u.trajectories.empty() || u.trajectories.size() % n != 0 ||
          (!recipe_.algorithm.filter_groups.enable &&
           u.trajectories.size() != static_cast<size_t>(recipe_.data.train_batch_size) * n))
        throw ValueError("the checkpoint's step under way does not fit data.train_batch_size and rollout.n of this recipe");
      for (size_t i = 0; i < u.trajectories.size(); i += n) data.prompts.push_back(train_->prompt(u.trajectories[i].dataset_row));
      for (size_t i = 0; i < data.prompts.size() && recipe_.algorithm.adv_estimator == "remax"; ++i) {
        const auto it = u.sums.find(fmt::format("{}{}", kBaselinePrefix, i));
        data.baselines.push_back(it != u.sums.end() ? it->second : NAN);
      }
      for (Trajectory& t : u.trajectories) {
        std::string text = tokenizer_->decode(t.response_ids, true);
        data.samples.push_back({std::move(t), std::move(text), true, job_.main()});
      }
      data.old_log_probs = std::move(u.old_log_probs);
      data.ref_log_probs = std::move(u.ref_log_probs);
      data.has_log_probs = true;
      data.updates_done = u.updates_done;
      data.sums.restore(u.sums);
      for (const auto& [name, value] : u.sums)
        if (name.starts_with(kMetricPrefix)) data.carried.set(name.substr(kMetricPrefix.size()), value);
      progress_.under_way.reset();
      data.index();
    } else {
      generate_step(data);
      fetch_details(job_, data.samples, details_wanted(data));
      timer.mark("gen", row);
    }
    add_sample_metrics(data.samples, *rewards_, recipe_, row);
    if (!resumed && recipe_.trainer.parity != "off") {
      enter(Phase::kActorForward);
      job_.phase(actor_ != nullptr, [&] { check_step_parity(data); });
    }
    for (const auto& [name, value] : data.carried.entries()) row.set(name, value);
    timer.mark("parity", row);
    compute_log_probs(data);
    if (actor_) compute_advantages(recipe_, registry_, kl_coef_, data, row);
    timer.mark("old_log_prob", row);
    if (data.step > recipe_.trainer.critic_warmup) {
      enter(Phase::kUpdate);
      rollout_->actor_changes();
      job_.phase(actor_ != nullptr, [&] { update(data, row); });
    }
    std::vector<int64_t> counts{progress_.updates, progress_.weight_version};
    job_.broadcast(counts, main_rank());
    progress_.updates = counts[0], progress_.weight_version = counts[1];
    timer.mark("update_actor", row);
    update_critic(data, row);
    if (recipe_.needs_critic()) timer.mark("update_critic", row);
  } catch (const StoppedError& e) {
    // Whoever saves them has all of them whole.
    if (!data.samples.empty()) fetch_details(job_, data.samples, std::vector<uint8_t>(data.samples.size(), job_.main()));
    const bool updating = !data.samples.empty() && !data.old_log_probs.empty();  // on the actor's ranks
    stop(e.what(), updating ? &data : nullptr);
  }
  if (recipe_.algorithm.kl_ctrl.type == "adaptive" && !std::isnan(data.reference_kl)) {
    const KlCtrlRecipe& k = recipe_.algorithm.kl_ctrl;
    AdaptiveKlController controller(kl_coef_, k.target_kl, k.horizon);
    controller.update(data.reference_kl, static_cast<double>(data.samples.size()));
    kl_coef_ = controller.coef();
  }
  progress_.step = data.step;
  progress_.cursor = sampler_->cursor();
  refit_rollout();
  timer.mark("refit", row);
  add_refit_metrics(row);
  add_times_trained(data, row);
  arenas_.memory.report(job_, row);
  timer.finish(data.samples, row);
  job_.report_wait_share(waited, row);
  for (const auto& [name, bytes] : job_.received_bytes()) {
    const auto it = received.find(name);
    row.set("comm/" + name + "/received_bytes", bytes - (it != received.end() ? it->second : 0.0));
  }
  add_expert_load(data.samples, job_, files_.config, row);
  const bool last = progress_.step == total_steps_;
  if (job_.main()) {
    run_dir_->write_metrics(progress_.step, row);
    if (recipe_.trainer.save_samples) run_dir_->write_samples(progress_.step, *train_, data.prompts, data.samples, *tokenizer_);
    bar_->print(fmt::format("step {}: {}", progress_.step, format_metrics_line(row)));
    bar_->update(progress_.step);
  }
  if (val_ && recipe_.trainer.test_freq > 0 && (progress_.step % recipe_.trainer.test_freq == 0 || last)) validate_now();
  if ((recipe_.trainer.save_freq > 0 && progress_.step % recipe_.trainer.save_freq == 0) || last) {
    save(nullptr);
    if (job_.main()) run_dir_->write_report();
  }
  if (job_.any(stop_requested())) stop(fmt::format("stopped by {} after step {}", stop_signal_name(), progress_.step), nullptr);
}

void Trainer::stop(const std::string& why, const StepData* under_way) {
  save(under_way);
  if (job_.main()) run_dir_->write_report();
  throw StoppedError(fmt::format("{}; everything was saved in {}: run the same command to go on", why, checkpoints()));
}

void Trainer::save(const StepData* under_way) {
  const TraceSpan span("checkpoint");
  progress_.command = kCommand;
  progress_.values["kl_coef"] = kl_coef_;
  progress_.under_way.reset();
  if (under_way) {
    StepUnderWay u;
    for (const ScoredSample& s : under_way->samples) u.trajectories.push_back(s.trajectory);
    u.old_log_probs = under_way->old_log_probs;
    u.ref_log_probs = under_way->ref_log_probs;
    u.updates_done = under_way->updates_done;
    u.sums = under_way->sums.values();
    for (const auto& [name, value] : under_way->carried.entries()) u.sums[std::string(kMetricPrefix) + name] = value;
    u.sums[kBatches] = static_cast<double>(under_way->batches);
    for (size_t i = 0; i < under_way->baselines.size(); ++i)
      if (!std::isnan(under_way->baselines[i])) u.sums[fmt::format("{}{}", kBaselinePrefix, i)] = under_way->baselines[i];
    progress_.under_way = std::move(u);
  }
  const TrainerRecipe& t = recipe_.trainer;
  if (recipe_.needs_critic()) enter(Phase::kSaveCritic);
  if (critic_) critic_->save(checkpoints(), progress_.step, t.max_ckpt_to_keep, t.resume_from_path);
  if (recipe_.needs_critic()) (void)job_.any(false);  // the actor's comes last: it is the run's
  enter(Phase::kSave);
  if (actor_) save_checkpoint(checkpoints(), *actor_, *optimizer_, progress_, t.max_ckpt_to_keep, nullptr, t.resume_from_path);
}

void Trainer::validate_now() {
  progress_.values[kValidationDue] = 1;
  MetricsRow row;
  try {
    row = validate();
  } catch (const StoppedError& e) {
    stop(e.what(), nullptr);
  }
  progress_.values.erase(kValidationDue);
  if (!job_.main()) return;
  run_dir_->write_metrics(progress_.step, row);
  bar_->print(fmt::format("step {}: validation: {}", progress_.step, format_metrics_line(row)));
}

MetricsRow Trainer::validate() {
  const TraceSpan span("validation");
  enter(Phase::kGenerate);
  return evaluate(
             rollout_->share(), job_, *val_, *rewards_, *tokenizer_, validation_params(recipe_),
             hash_combine(static_cast<uint64_t>(recipe_.rollout.seed), uint64_t{0x76616c}),
             [this](int64_t done, int64_t total) { note(fmt::format("validation: {}/{}", done, total)); },
             recipe_.reward_model.path.empty() ? std::function<void(std::vector<ScoredSample>&)>()
                                               : [this](std::vector<ScoredSample>& samples) { add_model_rewards(samples); })
      .metrics;
}

}  // namespace weft
