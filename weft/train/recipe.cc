#include "weft/train/recipe.h"

#include <filesystem>

#include "weft/base/dtype.h"
#include "weft/base/error.h"

namespace weft {
namespace {

constexpr double kMaxCount = 1e12;
constexpr double kMaxInt32 = 2147483647.0;
constexpr double kMaxSeed = 9007199254740992.0;

void visit_data(ConfigFields& f, DataRecipe& d) {
  f.add("data.train_files", d.train_files, "JSONL files to train on.");
  f.add("data.val_files", d.val_files, "JSONL files to validate on; none: no validation.");
  f.add("data.prompt_key", d.prompt_key,
        "Field that holds the prompt: a string (tokenised with the tokenizer's special tokens), or a message list (goes through "
        "the chat template, nothing is added). A field prompt_ids wins.");
  f.add("data.train_batch_size", d.train_batch_size, "Prompts a step [prompts]; in sft, rows a step [rows].").range(1, kMaxCount);
  f.add("data.max_prompt_length", d.max_prompt_length, "Longest prompt [tokens]; a longer one is an error.").range(1, kMaxInt32);
  f.add("data.max_response_length", d.max_response_length, "Longest response [tokens].").range(1, kMaxInt32);
  f.add("data.filter_overlong_prompts", d.filter_overlong_prompts,
        "Leave out prompts beyond max_prompt_length (in sft, rows beyond sft.max_length) and report their number.");
  f.add("data.shuffle", d.shuffle, "Shuffle the training rows, anew each epoch.");
  f.add("data.seed", d.seed, "Seed of the shuffling; -1: trainer.seed.").range(-1, kMaxSeed);
  f.add("data.train_max_samples", d.train_max_samples, "Use only the first rows for training [rows]; -1: all.")
      .range(-1, kMaxCount);
  f.add("data.val_max_samples", d.val_max_samples, "Use only the first rows for validation [rows]; -1: all.")
      .range(-1, kMaxCount);
  f.add("data.chat_template_kwargs", d.chat_template_kwargs, "Variables for the chat template, e.g. {enable_thinking = false}.");
}

void visit_rollout(ConfigFields& f, RolloutRecipe& r) {
  f.add(
      "rollout.mesh", r.mesh,
      "Ranks of the rollout: \"dp=4,tp=2,ep=8\" is 4 copies of the weights, each cut over 2 ranks, its experts over all 8; ep is "
      "tp unless said. Default: whole weights on each rank.");
  f.add("rollout.ranks", r.ranks, "Which ranks of the job, \"4-7\": the actor's, or none of them. Default: all.");
  f.add(
       "rollout.dtype", r.dtype,
       "Type of the rollout's weights. auto: actor.param_dtype, which trainer and rollout need to be equal. int8: the weights of "
       "the layers' products, with a scale a row, the others as actor.param_dtype (docs/refit.md).")
      .one_of({"auto", "float32", "fp32", "bfloat16", "bf16", "int8"});
  f.add("rollout.n", r.n, "Responses of each prompt: the group [responses].").range(1, 65536);
  f.add("rollout.temperature", r.temperature, "Sampling temperature; 0 is greedy and cannot be trained on.").range(0, 100);
  f.add("rollout.top_p", r.top_p, "Keep the smallest set of tokens with this probability; 1: all.").range(0, 1);
  f.add("rollout.top_k", r.top_k, "Keep this many tokens; 0 or -1: all.").range(-1, kMaxInt32);
  f.add("rollout.min_p", r.min_p, "Keep tokens with at least this share of the largest probability; 0: all.").range(0, 1);
  f.add("rollout.stop", r.stop, "Strings that end a response.");
  f.add("rollout.stop_token_ids", r.stop_token_ids, "Token ids that end a response, beside the model's own.").range(0, kMaxInt32);
  f.add("rollout.logit_bias", r.logit_bias, "Added to logits: {\"TOKEN_ID\" = BIAS, ...}.");
  f.add("rollout.min_tokens", r.min_tokens, "No end before this many tokens [tokens].").range(0, kMaxInt32);
  f.add("rollout.ignore_eos", r.ignore_eos, "Go on past end tokens, to the full length.");
  f.add("rollout.logprobs_mode", r.logprobs_mode,
        "Log-probs after temperature, bias and kept set (processed; what training needs), or of the bare logits (raw).")
      .one_of({"processed_logprobs", "raw_logprobs"});
  f.add("rollout.seed", r.seed, "Seed of the sampling; -1: trainer.seed.").range(-1, kMaxSeed);
  f.add("rollout.max_num_seqs", r.max_num_seqs, "Sequences that decode together [sequences].").range(1, 1 << 20);
  f.add("rollout.max_num_batched_tokens", r.max_num_batched_tokens, "Tokens of one forward: prefill comes in chunks [tokens].")
      .range(1, kMaxInt32);
  f.add("rollout.kv_cache_tokens", r.kv_cache_tokens,
        "Size of the KV cache [tokens]; 0: enough for max_num_seqs full sequences, within the memory there is.")
      .range(0, kMaxCount);
  f.add("rollout.block_size", r.block_size, "Tokens of a KV block; divides 64 [tokens].").range(1, 64);
  f.add("rollout.running", r.running,
        "Requests that run when the weights change: pause (they go on, their keys recomputed), keep (they go on with the old keys), "
        "abort (they end with what they have). `weft train` has none between its steps.")
      .one_of({"pause", "keep", "abort"});
  f.add("rollout.val_kwargs.n", r.val_kwargs.n, "Validation: responses of each prompt, for mean@n [responses].").range(1, 65536);
  f.add("rollout.val_kwargs.temperature", r.val_kwargs.temperature, "Validation: temperature; 0 is greedy.").range(0, 100);
  f.add("rollout.val_kwargs.top_p", r.val_kwargs.top_p, "Validation: top_p.").range(0, 1);
  f.add("rollout.val_kwargs.top_k", r.val_kwargs.top_k, "Validation: top_k; 0 or -1: all.").range(-1, kMaxInt32);
  f.add("rollout.val_kwargs.min_p", r.val_kwargs.min_p, "Validation: min_p.").range(0, 1);
}

void visit_optim(ConfigFields& f, const std::string& prefix, OptimRecipe& o) {
  f.add(prefix + ".lr", o.lr, "Learning rate of AdamW.").range(0, 1e6);
  f.add(prefix + ".weight_decay", o.weight_decay, "Decay of 2-D and larger weights, times the rate.").range(0, 1e6);
  f.add(prefix + ".betas", o.betas, "Decay rates of AdamW's two averages.").range(0, 1);
  f.add(prefix + ".eps", o.eps, "AdamW's epsilon.").positive();
  f.add(prefix + ".clip_grad", o.clip_grad, "Largest global gradient norm; 0: no clipping.").range(0, 1e12);
  f.add(prefix + ".lr_scheduler_type", o.lr_scheduler_type, "Rate after the warm-up.").one_of({"constant", "linear", "cosine"});
  f.add(prefix + ".lr_warmup_steps", o.lr_warmup_steps, "Updates with a linearly rising rate [updates].").range(0, kMaxCount);
  f.add(prefix + ".min_lr_ratio", o.min_lr_ratio, "Share of the rate where linear and cosine end.").range(0, 1);
}

void visit_actor(ConfigFields& f, ActorRecipe& a) {
  f.add("actor.mesh", a.mesh,
        "Ranks and what they share: \"fsdp=4\" shards parameters over 4 ranks, \"replicate=2,fsdp=4\" over 4 and holds 2 copies; "
        "tp=2 cuts heads, columns and vocabulary, cp=2 the sequences, ep=4 (of the same ranks) the experts. Threads of this "
        "process, or the "
        "processes of mpirun; one axis may be -1 then.");
  f.add("actor.ranks", a.ranks, "Which ranks of the job train, \"0-3\". Default: all.");
  f.add("actor.plan", a.plan,
        "Entries over the model's sharding table, \"PATTERN AXIS PLACEMENT\": \"*.self_attn.* tp replicated\", \"lm_head.weight "
        "fsdp cut(1)\".");
  f.add("actor.cp_split", a.cp_split,
        "Which positions of a sequence a rank of cp has: equal work under the causal mask, or neighbours.")
      .one_of({"zigzag", "contiguous"});
  f.add("actor.sequence_parallel", a.sequence_parallel,
        "Between the blocks each tp rank has a slice of the rows: less memory, the same bits.");
  f.add("actor.param_dtype", a.param_dtype,
        "Type of the weights in forward and backward, in trainer and rollout alike; masters are fp32. auto: the checkpoint's.")
      .one_of({"auto", "float32", "fp32", "bfloat16", "bf16"});
  f.add("actor.mini_batch_size", a.mini_batch_size, "Prompts of one optimizer update [prompts]; 0: data.train_batch_size.")
      .range(0, kMaxCount);
  f.add("actor.ppo_epochs", a.ppo_epochs, "Passes over each rollout batch.").range(1, 1000);
  f.add("actor.shuffle", a.shuffle, "Shuffle the prompts of a rollout batch before cutting mini-batches.");
  f.add("actor.max_tokens_per_micro_batch", a.max_tokens_per_micro_batch, "Tokens of one forward and backward [tokens].")
      .range(1, kMaxInt32);
  f.add("actor.loss_mode", a.loss_mode, "Policy loss.");
  f.add("actor.loss_agg_mode", a.loss_agg_mode, "How token losses become one number.")
      .one_of({"token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "token-sum"});
  f.add("actor.clip_ratio_low", a.clip_ratio_low, "The ratio is clipped below 1 - this.").range(0, 1);
  f.add("actor.clip_ratio_high", a.clip_ratio_high, "The ratio is clipped above 1 + this.").range(0, 1e6);
  f.add("actor.clip_ratio_c", a.clip_ratio_c, "Dual clip: bound of the ratio where the advantage is negative; 0: off, else > 1.")
      .range(0, 1e6);
  f.add("actor.tau_pos", a.tau_pos, "sapo: temperature of the gate where the advantage is positive.").range(1e-6, 1e6);
  f.add("actor.tau_neg", a.tau_neg, "sapo: temperature of the gate where it is not.").range(1e-6, 1e6);
  f.add("actor.off_policy_mask_threshold", a.off_policy_mask_threshold,
        "Leave the policy loss of responses with a negative advantage whose mean (rollout - current) log-prob is above this; 0: "
        "off.")
      .range(0, 1e6);
  f.add("actor.use_kl_loss", a.use_kl_loss, "Add KL to the reference to the loss.");
  f.add("actor.kl_loss_coef", a.kl_loss_coef, "Weight of the KL in the loss.").range(0, 1e6);
  f.add("actor.kl_loss_type", a.kl_loss_type,
        "KL estimator: k1 = kl, k2 = mse, k3 = low_var_kl, abs; with + the gradient of k2.");
  f.add("actor.kl_loss_unbiased", a.kl_loss_unbiased,
        "Multiply the KL in the loss by the ratio to the old policy, with its gradient.");
  f.add("actor.entropy_coeff", a.entropy_coeff, "Weight of the entropy bonus; entropy is a metric in any case.").range(0, 1e6);
  f.add("actor.router_aux_loss_coef", a.router_aux_loss_coef, "sft: weight of the router's load balancing loss; 0: off.")
      .range(0, 1e6);
  f.add("actor.recompute", a.recompute, "Recompute each block in backward: less memory, about a third more work.");
  f.add("actor.mask_truncated", a.mask_truncated, "Leave responses that hit max_response_length out of the loss.");
  visit_optim(f, "actor.optim", a.optim);
}

void visit_algorithm(ConfigFields& f, AlgorithmRecipe& a) {
  f.add("algorithm.adv_estimator", a.adv_estimator, "Advantage estimator.");
  f.add("algorithm.norm_adv_by_std_in_grpo", a.norm_adv_by_std_in_grpo,
        "Divide by the group's standard deviation; false: Dr.GRPO.");
  f.add("algorithm.adv_eps", a.adv_eps, "Added to the standard deviation.").range(0, 1);
  f.add("algorithm.gamma", a.gamma, "Discount (reinforce_plus_plus).").range(0, 1);
  f.add("algorithm.lam", a.lam, "Of generalised advantage estimation (gae).").range(0, 1);
  f.add("algorithm.use_kl_in_reward", a.use_kl_in_reward, "Subtract KL to the reference from the reward.");
  f.add("algorithm.kl_penalty", a.kl_penalty, "KL estimator in the reward; as actor.kl_loss_type.");
  f.add("algorithm.kl_ctrl.type", a.kl_ctrl.type, "Control of the KL weight in the reward.").one_of({"fixed", "adaptive"});
  f.add("algorithm.kl_ctrl.kl_coef", a.kl_ctrl.kl_coef, "Weight of the KL in the reward.").range(0, 1e6);
  f.add("algorithm.kl_ctrl.target_kl", a.kl_ctrl.target_kl, "adaptive: the KL a token to hold.").positive();
  f.add("algorithm.kl_ctrl.horizon", a.kl_ctrl.horizon, "adaptive: responses over which the weight follows [responses].")
      .positive();
  f.add("algorithm.filter_groups.enable", a.filter_groups.enable,
        "Dynamic sampling: groups whose responses all have the same metric are replaced by those of further prompts.");
  f.add("algorithm.filter_groups.metric", a.filter_groups.metric,
        "What must differ within a group: reward (the weighted sum, before shaping and KL) or the name of one reward.");
  f.add("algorithm.filter_groups.max_num_gen_batches", a.filter_groups.max_num_gen_batches,
        "Batches generated for one step at most; then it goes on with the groups it has; 0: no bound [batches].")
      .range(0, 1e6);
  f.add("algorithm.teacher_kl_coef", a.teacher_kl_coef, "Weight of teacher - old log-prob in the advantages; needs teacher.path.")
      .range(0, 1e6);
  RolloutCorrectionRecipe& c = a.rollout_correction;
  f.add("algorithm.rollout_correction.rollout_is", c.rollout_is,
        "Importance weights for the gap between trainer and rollout: null, token, sequence, geometric.");
  f.add("algorithm.rollout_correction.rollout_is_threshold", c.rollout_is_threshold,
        "Weights are cut at this; \"low_high\" zeroes weights outside.")
      .accept_number();
  f.add("algorithm.rollout_correction.rollout_is_batch_normalize", c.rollout_is_batch_normalize, "Scale weights to mean 1.");
  f.add("algorithm.rollout_correction.rollout_rs", c.rollout_rs,
        "Rejection of tokens or responses by a statistic of the gap, e.g. token_k1, seq_mean_k3; several joined by commas.");
  f.add("algorithm.rollout_correction.rollout_rs_threshold", c.rollout_rs_threshold,
        "Bound of the statistic, \"low_high\" for k1; several joined by commas.")
      .accept_number();
  f.add("algorithm.rollout_correction.rollout_token_veto_threshold", c.rollout_token_veto_threshold,
        "A response with a token whose ratio is below this is left out whole; 0: off.")
      .range(0, 1);
  f.add("algorithm.rollout_correction.bypass_mode", c.bypass_mode,
        "Take the rollout's log-probs as the old ones. auto: where parity promises that they are equal.")
      .one_of({"auto", "true", "false"});
}

void visit_reward(ConfigFields& f, RewardRecipe& r) {
  f.add("reward.funcs", r.funcs, "Rewards: built-in names, or your own Python as file.py:function.");
  f.add("reward.weights", r.weights, "Weight of each of funcs (then of command); none: 1 each.").range(-1e12, 1e12);
  f.add("reward.command", r.command, "Program with arguments that scores rows, JSON lines in and out.");
  f.add("reward.kwargs", r.kwargs, "Arguments by reward name, e.g. {regex = {pattern = \"...\"}}.");
  f.add(
      "reward.ground_truth_key", r.ground_truth_key,
      "Field with the ground truth, dotted. auto: the one present of reward_model.ground_truth, solution, answer, ground_truth.");
  f.add("reward.overlong_buffer.enable", r.overlong_buffer.enable, "Punish responses that come near data.max_response_length.");
  f.add("reward.overlong_buffer.len", r.overlong_buffer.len,
        "The last tokens before the limit, over which the punishment rises [tokens].")
      .range(0, kMaxInt32);
  f.add("reward.overlong_buffer.penalty_factor", r.overlong_buffer.penalty_factor, "Punishment at the limit.").range(0, 1e6);
  f.add("reward.timeout", r.timeout, "Longest time of one call of a reward [s].").range(0.001, 1e6);
  f.add("reward.workers", r.workers, "Processes that compute rewards; 0: one a thread.").range(0, 4096);
  f.add("reward.on_nan", r.on_nan, "A reward that is NaN stops the run, or its row is dropped from statistics and loss.")
      .one_of({"stop", "drop"});
  f.add("reward.python", r.python, "Python that runs your rewards.");
}

void visit_trainer(ConfigFields& f, TrainerRecipe& t) {
  f.add("trainer.total_training_steps", t.total_training_steps, "Steps of the run [steps]; 0: by total_epochs.")
      .range(0, kMaxCount);
  f.add("trainer.total_epochs", t.total_epochs, "Passes over the training rows.").range(1, 1e9);
  f.add("trainer.critic_warmup", t.critic_warmup, "Steps in which the critic learns and the actor does not [steps].")
      .range(0, kMaxCount);
  f.add("trainer.test_freq", t.test_freq, "Validate every this many steps, and after the last; <= 0: never [steps].")
      .range(-1, kMaxCount);
  f.add("trainer.val_before_train", t.val_before_train, "Validate before the first step.");
  f.add("trainer.save_freq", t.save_freq, "Save a checkpoint every this many steps [steps]; the last step is saved in any case.")
      .range(-1, kMaxCount);
  f.add("trainer.max_ckpt_to_keep", t.max_ckpt_to_keep, "Checkpoints to keep; 0: all.").range(0, kMaxCount);
  f.add("trainer.resume_mode", t.resume_mode,
        "auto: go on from the run's latest checkpoint; disable: start anew; resume_path: from resume_from_path.")
      .one_of({"auto", "disable", "resume_path"});
  f.add("trainer.resume_from_path", t.resume_from_path, "Checkpoint (global_step_N) to go on from.");
  f.add("trainer.run_name", t.run_name, "Name of the run's directory; default: the recipe's file name.");
  f.add("trainer.runs_dir", t.runs_dir, "Directory that holds runs.");
  f.add("trainer.logger", t.logger, "Where metrics go, beside metrics.jsonl.").one_of({"console", "tensorboard"});
  f.add("trainer.metric_aliases", t.metric_aliases, "Write metrics under verl's or TRL's names too, so that runs overlay.")
      .one_of({"none", "verl", "trl"});
  f.add("trainer.save_samples", t.save_samples, "Write every response to samples/STEP.jsonl.");
  f.add(
       "trainer.parity", t.parity,
       "Compare log-probs and routes of trainer and rollout: require (stop at the first unequal bit), report, off. auto: require "
       "where equality is promised, else report.")
      .one_of({"auto", "require", "report", "off"});
  f.add("trainer.device", t.device, "Where tensors live.").one_of({"cpu", "cuda"});
  f.add("trainer.threads", t.threads, "Threads of the kernels; 0: all of the CPU mask.").range(0, 4096);
  f.add("trainer.seed", t.seed, "Seed of everything that has none of its own.").range(0, kMaxSeed);
}

}  // namespace

void Recipe::visit(ConfigFields& f) {
  f.add("model.path", model.path, "Checkpoint directory, or a hub id found in HF_HUB_CACHE.").required();
  f.add("model.init", model.init, "Weights from the checkpoint, or random ones for a directory that has only config.json.")
      .one_of({"checkpoint", "random"});
  visit_data(f, data);
  visit_rollout(f, rollout);
  visit_actor(f, actor);
  visit_algorithm(f, algorithm);
  f.add("router_replay.mode", router_replay_mode,
        "Replay of expert choices in updates: R2 those of the old-log-prob pass, R3 those of the rollout.")
      .one_of({"disabled", "R2", "R3"});
  visit_reward(f, reward);
  f.add("reference.path", reference.path, "Frozen model for KL; default: model.path.");
  f.add("reference.mesh", reference.mesh, "Its mesh, as actor.mesh; default: the actor's.");
  f.add("reference.ranks", reference.ranks, "Which ranks of the job; default: the actor's, or all with a mesh of its own.");
  f.add("critic.path", critic.path,
        "Where the critic's trunk comes from (algorithm.adv_estimator = \"gae\"); default: model.path.");
  f.add("critic.mesh", critic.mesh, "Its mesh, as actor.mesh; default: the actor's.");
  f.add("critic.ranks", critic.ranks, "Which ranks of the job; default: the actor's, or all with a mesh of its own.");
  f.add("critic.cliprange_value", critic.cliprange_value, "How far a value may move from the step's first in the loss.")
      .range(1e-9, 1e9);
  f.add("critic.loss_agg_mode", critic.loss_agg_mode, "As actor.loss_agg_mode, of the value loss.");
  f.add("critic.ppo_epochs", critic.ppo_epochs, "Passes over each rollout batch; 0: actor.ppo_epochs.").range(0, 1000);
  f.add("critic.recompute", critic.recompute, "As actor.recompute.");
  visit_optim(f, "critic.optim", critic.optim);
  f.add("reward_model.path", reward_model.path,
        "Sequence classifier with one label (score.weight) that scores whole trajectories, beside reward.funcs; none: off.");
  f.add("reward_model.mesh", reward_model.mesh, "Its mesh, as actor.mesh; default: the actor's.");
  f.add("reward_model.ranks", reward_model.ranks, "Which ranks of the job; default: the actor's, or all with a mesh of its own.");
  f.add("reward_model.weight", reward_model.weight, "Of its score in the reward.").range(-1e12, 1e12);
  f.add("refit.mode", refit.mode,
        "Weights on their way to the rollout: in_place, over the old ones; transactional, beside them, for all ranks or none. "
        "auto: in_place where actor and rollout share ranks.")
      .one_of({"auto", "in_place", "transactional"});
  f.add("refit.watermark_mb", refit.watermark_mb, "Bytes in flight beyond the rollout's weights, on each rank [MB].")
      .range(1, 1e6);
  f.add("refit.verify", refit.verify, "Compare hashes of every tensor before and after.");
  f.add("memory.limit", memory.limit,
        "What roles may keep in a process's memory at once (\"12GB\", \"800MB\"), activations aside: what a phase of a step does not need "
        "sleeps. Empty: nothing sleeps.");
  f.add("memory.store_dir", memory.store_dir, "Where sleeping weights and moments are kept, on a local disk; empty: the run's directory.");
  f.add("teacher.path", teacher_path, "Frozen teacher with the same tokenizer, for on-policy distillation; none: off.");
  f.add("sft.max_length", sft.max_length, "Longest row [tokens]; a longer one is an error.").range(2, kMaxInt32);
  f.add("sft.completion_only_loss", sft.completion_only_loss, "Learn completions and assistant turns only; false: every token.");
  visit_trainer(f, trainer);
  f.add("comm.timeout", comm.timeout, "Several ranks: how long peers wait in communication for a rank that does not come [s].")
      .range(0.1, 1e6);
  f.add("comm.heartbeat", comm.heartbeat, "Several ranks: a process that shows no sign of life for so long is lost [s].")
      .range(0.5, 1e6);
  f.add("comm.progress", comm.progress,
        "Who moves bytes between ranks: a thread of its own, the rank inside its calls, or by the number of cores.")
      .one_of({"auto", "background", "inline"});
}

Recipe parse_recipe(std::string_view toml, const std::string& path, const std::vector<std::string>& overrides, RecipeUse use,
                    const RecipeChoices& choices) {
  Recipe recipe;
  ConfigFields fields;
  recipe.visit(fields);
  read_config_text(toml, path, fields, recipe_names());
  for (const std::string& text : overrides) apply_config_override(text, fields, recipe_names());
  check_required(fields);
  resolve_recipe(recipe, path);
  validate_recipe(recipe, use, choices);
  return recipe;
}

Recipe load_recipe(const std::string& path, const std::vector<std::string>& overrides, RecipeUse use,
                   const RecipeChoices& choices) {
  return parse_recipe(read_config_bytes(path), path, overrides, use, choices);
}

void resolve_recipe(Recipe& recipe, const std::string& path) {
  if (recipe.data.seed < 0) recipe.data.seed = recipe.trainer.seed;
  if (recipe.rollout.seed < 0) recipe.rollout.seed = recipe.trainer.seed;
  if (recipe.rollout.top_k < 0) recipe.rollout.top_k = 0;
  if (recipe.rollout.val_kwargs.top_k < 0) recipe.rollout.val_kwargs.top_k = 0;
  if (recipe.actor.mini_batch_size == 0) recipe.actor.mini_batch_size = recipe.data.train_batch_size;
  if (const auto dtype = parse_dtype(recipe.actor.param_dtype)) recipe.actor.param_dtype = std::string(dtype_name(*dtype));
  if (const auto dtype = parse_dtype(recipe.rollout.dtype)) recipe.rollout.dtype = std::string(dtype_name(*dtype));
  const size_t rewards = recipe.reward.funcs.size() + (recipe.reward.command.empty() ? 0 : 1);
  if (recipe.reward.weights.empty()) recipe.reward.weights.assign(rewards, 1.0);
  if (recipe.reference.path.empty()) recipe.reference.path = recipe.model.path;
  if (recipe.critic.path.empty()) recipe.critic.path = recipe.model.path;
  if (recipe.critic.ppo_epochs == 0) recipe.critic.ppo_epochs = recipe.actor.ppo_epochs;
  if (recipe.trainer.run_name.empty()) {
    std::string stem = std::filesystem::path(path).stem().string();
    recipe.trainer.run_name = stem.empty() ? "run" : stem;
  }
  if (recipe.memory.store_dir.empty()) recipe.memory.store_dir = recipe.run_dir() + "/asleep";
}

std::string print_recipe(const Recipe& recipe) {
  // Defaults come from a fresh struct, values from the given one: fields are registered before the copy.
  Recipe copy;
  ConfigFields fields;
  copy.visit(fields);
  copy = recipe;
  return print_config(fields);
}

}  // namespace weft
