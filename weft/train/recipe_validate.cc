// What no single key can show.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "weft/base/error.h"
#include "weft/base/memory.h"
#include "weft/base/threads.h"
#include "weft/mesh/sharding_plan.h"
#include "weft/rl/advantage.h"
#include "weft/rl/correction.h"
#include "weft/rl/kl.h"
#include "weft/rl/policy_loss.h"
#include "weft/train/recipe.h"

namespace weft {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw UsageError("recipe: " + text); }

void require_known(const std::string& key, const std::string& name, std::vector<std::string> known,
                   const std::vector<std::string>& extra) {
  known.insert(known.end(), extra.begin(), extra.end());
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  std::string best;
  int64_t distance = 3;
  for (const std::string& word : known)
    if (const int64_t d = edit_distance(name, word); d < distance) {
      distance = d;
      best = word;
    }
  refuse(fmt::format("{} = \"{}\" is unknown{}; there are: {}", key, name, best.empty() ? "" : ", did you mean \"" + best + "\"",
                     fmt::join(known, ", ")));
}

// Words that weft/rl parses: its messages list what there is.
void by_rl(const char* key, const auto& parse) {
  try {
    parse();
  } catch (const ValueError& error) {
    refuse(fmt::format("{}: {}", key, error.what()));
  }
}

void validate_common(const Recipe& r) {
  if (r.actor.mesh.find("-1") == std::string::npos) (void)actor_mesh(r, 0);
  for (const auto& [key, mesh, rollout] : {std::tuple("rollout.mesh", r.rollout.mesh, true),
                                           {"reference.mesh", r.reference.mesh, false},
                                           {"critic.mesh", r.critic.mesh, false},
                                           {"reward_model.mesh", r.reward_model.mesh, false}})
    if (!mesh.empty() && mesh.find("-1") == std::string::npos) try {
        (void)(rollout ? parse_rollout_dims(mesh, 0, {"oe"}) : parse_parallel_dims(mesh, 0, {"oe"}));
      } catch (const UsageError& e) {
        refuse(fmt::format("{}: {}", key, e.what()));
      }
  for (const auto& [key, ranks] : {std::pair("actor.ranks", r.actor.ranks),
                                   {"rollout.ranks", r.rollout.ranks},
                                   {"reference.ranks", r.reference.ranks},
                                   {"critic.ranks", r.critic.ranks},
                                   {"reward_model.ranks", r.reward_model.ranks}})
    if (!ranks.empty()) (void)parse_ranks(ranks, key);
  if (r.rollout.dtype != "auto" && r.rollout.dtype != r.actor.param_dtype && r.trainer.parity == "require")
    refuse(fmt::format(
        "trainer.parity = \"require\" with rollout.dtype = \"{}\" and actor.param_dtype = \"{}\": trainer and rollout "
        "cannot agree in other precisions; use trainer.parity = \"report\"",
        r.rollout.dtype, r.actor.param_dtype));
  for (const std::string& entry : r.actor.plan) (void)parse_plan_entry(entry);
  if (64 % r.rollout.block_size != 0) refuse(fmt::format("rollout.block_size = {} does not divide 64", r.rollout.block_size));
  const std::string& name = r.trainer.run_name;
  if (name == "." || name == ".." || name.find('/') != std::string::npos || name.find('\0') != std::string::npos)
    refuse(fmt::format("trainer.run_name = \"{}\" is no directory name; put the directory into trainer.runs_dir", name));
  if (r.trainer.runs_dir.empty()) refuse("trainer.runs_dir is empty");
  for (const std::vector<std::string>* files : {&r.data.train_files, &r.data.val_files})
    for (const std::string& file : *files) {
      if (file.empty()) refuse("data files: a name is empty");
      if (file.ends_with(".parquet"))
        refuse(fmt::format("{} is Parquet; turn it into JSONL with tools/to_jsonl.py {} > FILE.jsonl", file, file));
    }
  if (!r.memory.limit.empty()) {
    if (parse_bytes(r.memory.limit).value_or(0) == 0)
      refuse(fmt::format("memory.limit = \"{}\" is no size: \"12GB\", \"800MB\", \"1.5GiB\"; leave it out for no limit", r.memory.limit));
    if (r.memory.store_dir.starts_with("~")) refuse(fmt::format("memory.store_dir = \"{}\": ~ means nothing here, write the whole path", r.memory.store_dir));
    if (r.trainer.device != "cpu") refuse("memory.limit is for memory of the CPU: leave it out with trainer.device = \"cuda\"");
  }
  if ((r.trainer.resume_mode == "resume_path") == r.trainer.resume_from_path.empty())
    refuse("trainer.resume_mode = \"resume_path\" and trainer.resume_from_path belong together: give both or neither");
  (void)parse_logit_bias(r.rollout.logit_bias);
  for (const std::string& stop : r.rollout.stop)
    if (stop.empty()) refuse("rollout.stop: an empty string would stop everything");
  if (r.rollout.val_kwargs.n > 1 && r.rollout.val_kwargs.temperature == 0)
    refuse(fmt::format(
        "rollout.val_kwargs.n = {} with rollout.val_kwargs.temperature = 0: greedy responses are all the same; set a temperature",
        r.rollout.val_kwargs.n));
  for (const auto& [key, t] : {std::pair("rollout.temperature", r.rollout.temperature),
                               {"rollout.val_kwargs.temperature", r.rollout.val_kwargs.temperature}})
    if (t > 0 && t < 0.001) refuse(fmt::format("{} = {} is below 0.001: use 0 (greedy) or more", key, t));
  if (r.trainer.threads > 8 * available_cores())
    refuse(fmt::format("trainer.threads = {} on {} cores: they would wait for each other", r.trainer.threads, available_cores()));
  if (r.rollout.top_p <= 0 || r.rollout.val_kwargs.top_p <= 0) refuse("top_p = 0 keeps no token; 1 keeps all");
}

void validate_optim(const char* section, const OptimRecipe& o) {
  if (o.betas.size() != 2 || o.betas[0] >= 1 || o.betas[1] >= 1)
    refuse(section + std::string(".betas must be two numbers from 0 to below 1, e.g. [0.9, 0.999]"));
}

void validate_rewards(const RewardRecipe& r, bool has_model) {
  const size_t count = r.funcs.size() + (r.command.empty() ? 0 : 1);
  if (count == 0 && !has_model)
    refuse(
        "no reward: give reward.funcs = [\"last_number\"], or your own as [\"my_reward.py:fn\"], or reward.command, or "
        "reward_model.path");
  if (r.weights.size() != count)
    refuse(fmt::format("reward.weights has {} entries for {} rewards ({}{}{})", r.weights.size(), count, fmt::join(r.funcs, ", "),
                       r.funcs.empty() || r.command.empty() ? "" : ", ", r.command.empty() ? "" : r.command.front()));
  for (size_t i = 0; i < r.funcs.size(); ++i) {
    if (r.funcs[i].empty()) refuse("reward.funcs: a name is empty");
    if (std::find(r.funcs.begin(), r.funcs.begin() + static_cast<std::ptrdiff_t>(i), r.funcs[i]) !=
        r.funcs.begin() + static_cast<std::ptrdiff_t>(i))
      refuse(fmt::format("reward.funcs names \"{}\" twice; use reward.weights", r.funcs[i]));
  }
  if (r.ground_truth_key.empty()) refuse("reward.ground_truth_key is empty; \"auto\" looks for the usual names");
}

void validate_rl(const Recipe& r, const RecipeChoices& choices) {
  if (r.rollout.temperature <= 0)
    refuse("rollout.temperature = 0 is greedy: its log-probs cannot be trained on; use a temperature above 0, e.g. 1.0");
  if (r.rollout.logprobs_mode != "processed_logprobs")
    refuse(
        "rollout.logprobs_mode = \"raw_logprobs\" cannot be trained on: the trainer needs the sampling distribution's log-probs");
  if (r.rollout.min_tokens > r.data.max_response_length)
    refuse(fmt::format("rollout.min_tokens = {} is above data.max_response_length = {}", r.rollout.min_tokens,
                       r.data.max_response_length));
  if (r.rollout.ignore_eos && r.actor.mask_truncated)
    refuse(
        "rollout.ignore_eos makes every response hit its limit and actor.mask_truncated leaves those out: nothing would be "
        "learnt");
  const int64_t full = r.data.max_prompt_length + r.data.max_response_length;
  if (r.rollout.kv_cache_tokens > 0 && r.rollout.kv_cache_tokens < full)
    refuse(fmt::format("rollout.kv_cache_tokens = {} is below data.max_prompt_length + data.max_response_length = {}",
                       r.rollout.kv_cache_tokens, full));
  if (r.actor.mini_batch_size > r.data.train_batch_size || r.data.train_batch_size % r.actor.mini_batch_size != 0)
    refuse(fmt::format("actor.mini_batch_size = {} [prompts] does not divide data.train_batch_size = {} [prompts]",
                       r.actor.mini_batch_size, r.data.train_batch_size));
  if (r.actor.clip_ratio_c != 0 && r.actor.clip_ratio_c <= 1)
    refuse(fmt::format("actor.clip_ratio_c = {} must be above 1, or 0 for no dual clip", r.actor.clip_ratio_c));
  if (r.actor.router_aux_loss_coef != 0) refuse("actor.router_aux_loss_coef is for weft sft only; set it to 0");

  std::vector<std::string> losses;
  const PolicyLossRegistry registry = builtin_policy_losses();
  for (const auto& [name, loss] : registry) losses.push_back(name);
  require_known("actor.loss_mode", r.actor.loss_mode, losses, choices.loss_modes);
  if (const auto found = registry.find(r.actor.loss_mode); found != registry.end()) {
    const PolicyParams params{.clip_ratio_low = r.actor.clip_ratio_low,
                              .clip_ratio_high = r.actor.clip_ratio_high,
                              .clip_ratio_c = r.actor.clip_ratio_c,
                              .tau_pos = r.actor.tau_pos,
                              .tau_neg = r.actor.tau_neg};
    by_rl("actor.loss_mode",
          [&] { check_policy_params(found->first, found->second, params, parse_aggregation_mode(r.actor.loss_agg_mode)); });
  }
  std::vector<std::string> estimators;
  for (const auto& [name, fn] : builtin_advantages()) estimators.push_back(name);
  require_known("algorithm.adv_estimator", r.algorithm.adv_estimator, estimators, choices.adv_estimators);
  if (r.rollout.n == 1 && r.teacher_path.empty() && r.algorithm.adv_estimator != "reinforce_plus_plus" &&
      r.algorithm.adv_estimator != "remax" && !r.needs_critic() &&
      std::find(choices.adv_estimators.begin(), choices.adv_estimators.end(), r.algorithm.adv_estimator) ==
          choices.adv_estimators.end())
    refuse(
        fmt::format("rollout.n = 1 with algorithm.adv_estimator = \"{}\": a group of one has advantage 0; use rollout.n >= 2, "
                    "reinforce_plus_plus, remax or gae",
                    r.algorithm.adv_estimator));

  if (r.trainer.critic_warmup > 0 && !r.needs_critic())
    refuse(fmt::format("trainer.critic_warmup = {} without a critic: it is for algorithm.adv_estimator = \"gae\"",
                       r.trainer.critic_warmup));
  for (const auto& [key, ranks, used, need] :
       {std::tuple("reference.ranks", &r.reference.ranks, r.needs_reference() || !r.teacher_path.empty(),
                   "actor.use_kl_loss, algorithm.use_kl_in_reward or teacher.path"),
        {"critic.ranks", &r.critic.ranks, r.needs_critic(), "algorithm.adv_estimator = \"gae\""},
        {"reward_model.ranks", &r.reward_model.ranks, !r.reward_model.path.empty(), "reward_model.path"}})
    if (!ranks->empty() && !used)
      refuse(fmt::format("{} = \"{}\": this recipe has no such role (it comes with {})", key, *ranks, need));

  const std::string& bypass = r.algorithm.rollout_correction.bypass_mode;
  if (r.router_replay_mode == "R2" && bypass == "true")
    refuse(
        "router_replay.mode = \"R2\" records in the old-log-prob pass, which algorithm.rollout_correction.bypass_mode = true "
        "skips; "
        "use \"auto\" or \"false\", or R3");
  if (r.router_replay_mode == "R2" && r.trainer.parity == "require")
    refuse("trainer.parity = \"require\" is not promised under router_replay.mode = \"R2\"; use \"report\" or R3");
  if (r.trainer.device == "cuda" && r.trainer.parity == "require")
    refuse("trainer.parity = \"require\" is not promised on CUDA yet; use \"report\"");
  if (r.actor.use_kl_loss && r.algorithm.use_kl_in_reward)
    refuse("actor.use_kl_loss and algorithm.use_kl_in_reward would count the KL twice; use one");
  by_rl("actor.kl_loss_type", [&] { (void)parse_kl_kind(r.actor.kl_loss_type); });
  by_rl("algorithm.kl_penalty", [&] { (void)parse_kl_kind(r.algorithm.kl_penalty); });
  const FilterGroupsRecipe& filter = r.algorithm.filter_groups;
  if (filter.enable) {
    if (r.rollout.n == 1)
      refuse("algorithm.filter_groups.enable = true with rollout.n = 1: a group of one has nothing to differ from");
    std::vector<std::string> metrics = r.reward.funcs;
    if (!r.reward.command.empty()) metrics.push_back("command");
    metrics.push_back("reward");
    // Rewards name themselves (my.py:fn is fn), so a part of funcs will do.
    const bool known = std::any_of(metrics.begin(), metrics.end(), [&](const std::string& name) {
      return name == filter.metric || name.ends_with(":" + filter.metric);
    });
    if (!known) require_known("algorithm.filter_groups.metric", filter.metric, metrics, {});
  }
  const OverlongBufferRecipe& overlong = r.reward.overlong_buffer;
  if (overlong.enable && (overlong.len < 1 || overlong.len > r.data.max_response_length))
    refuse(fmt::format("reward.overlong_buffer.len = {} must be from 1 to data.max_response_length = {}", overlong.len,
                       r.data.max_response_length));
  if (r.actor.kl_loss_unbiased && !r.actor.use_kl_loss) refuse("actor.kl_loss_unbiased = true needs actor.use_kl_loss = true");
  if (r.algorithm.kl_ctrl.type == "adaptive" && !r.algorithm.use_kl_in_reward)
    refuse("algorithm.kl_ctrl.type = \"adaptive\" controls the KL in the reward: set algorithm.use_kl_in_reward = true");
  const double responses = static_cast<double>(r.data.train_batch_size * r.rollout.n);
  if (r.algorithm.kl_ctrl.type == "adaptive" && r.algorithm.kl_ctrl.horizon <= 0.2 * responses)
    refuse(fmt::format(
        "algorithm.kl_ctrl.horizon = {} is not above a fifth of the step's {} responses: one step could make the KL weight "
        "negative",
        r.algorithm.kl_ctrl.horizon, responses));
  if (!r.teacher_path.empty() && r.algorithm.teacher_kl_coef == 0)
    refuse("teacher.path with algorithm.teacher_kl_coef = 0: the teacher would be computed for nothing; leave one of them out");
  const RolloutCorrectionRecipe& c = r.algorithm.rollout_correction;
  require_known("algorithm.rollout_correction.rollout_is", c.rollout_is, {"null", "token", "sequence", "geometric"},
                choices.corrections);
  by_rl("algorithm.rollout_correction.rollout_is_threshold", [&] {
    CorrectionOptions options;
    parse_importance_threshold(c.rollout_is_threshold, &options);
  });
  if (c.rollout_rs == "null" || c.rollout_rs.empty()) {
    if (!c.rollout_rs_threshold.empty())
      refuse("algorithm.rollout_correction.rollout_rs_threshold is given without algorithm.rollout_correction.rollout_rs");
  } else {
    by_rl("algorithm.rollout_correction.rollout_rs", [&] { (void)parse_rejection_rules(c.rollout_rs, c.rollout_rs_threshold); });
  }
}

}  // namespace

std::vector<std::pair<int64_t, double>> parse_logit_bias(const ConfigTable& table) {
  std::vector<std::pair<int64_t, double>> out;
  const auto json = nlohmann::json::parse(table.json);
  for (const auto& [key, value] : json.items()) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id > 2147483647)
      refuse(fmt::format("rollout.logit_bias: \"{}\" is no token id", key));
    if (!value.is_number()) refuse(fmt::format("rollout.logit_bias: the bias of token {} is no number", key));
    out.emplace_back(id, value.get<double>());
  }
  std::sort(out.begin(), out.end());
  for (size_t i = 1; i < out.size(); ++i)
    if (out[i].first == out[i - 1].first) refuse(fmt::format("rollout.logit_bias: token {} is given twice", out[i].first));
  return out;
}

ParallelDims actor_mesh(const Recipe& r, int64_t world) {
  if (r.actor.mesh.find_first_not_of(' ') == std::string::npos) refuse("actor.mesh is empty: fsdp=1 is one rank");
  ParallelDims dims;
  try {
    dims = parse_parallel_dims(r.actor.mesh, world, {"oe"});  // whether the model has that axis is seen when it is loaded
  } catch (const UsageError& e) {
    refuse(fmt::format("actor.mesh: {}", e.what()));
  }
  if (dims.world() > 1 && r.trainer.device != "cpu")
    refuse(fmt::format("actor.mesh = \"{}\" with trainer.device = \"{}\": several ranks need the CPU so far", r.actor.mesh,
                       r.trainer.device));
  return dims;
}

TokenSharing actor_sharing(const Recipe& r) {
  return {parse_context_split(r.actor.cp_split, "actor.cp_split"), r.actor.sequence_parallel};
}

void validate_recipe(const Recipe& r, RecipeUse use, const RecipeChoices& choices) {
  validate_common(r);
  if (use == RecipeUse::kEval) {
    if (r.data.val_files.empty()) refuse("data.val_files is missing: weft eval needs JSONL files");
    validate_rewards(r.reward, use == RecipeUse::kTrain && !r.reward_model.path.empty());
    return;
  }
  if (r.data.train_files.empty()) refuse("data.train_files is missing: JSONL files to train on");
  validate_optim("actor.optim", r.actor.optim);
  validate_optim("critic.optim", r.critic.optim);
  if (use == RecipeUse::kTrain) {
    validate_rewards(r.reward, use == RecipeUse::kTrain && !r.reward_model.path.empty());
    validate_rl(r, choices);
  }
  if (use == RecipeUse::kSft && !r.memory.limit.empty())
    refuse("memory.limit is for weft train: sft has one phase, which needs all that it has");
  if (use == RecipeUse::kSft && r.actor.recompute && r.actor.router_aux_loss_coef > 0)
    refuse("actor.recompute = true and actor.router_aux_loss_coef exclude each other: set one of them off");
  if (r.trainer.total_training_steps > 0 && r.actor.optim.lr_warmup_steps > 0 && use == RecipeUse::kSft &&
      r.actor.optim.lr_warmup_steps > r.trainer.total_training_steps)
    refuse(fmt::format("actor.optim.lr_warmup_steps = {} is above trainer.total_training_steps = {}",
                       r.actor.optim.lr_warmup_steps, r.trainer.total_training_steps));
}

}  // namespace weft
