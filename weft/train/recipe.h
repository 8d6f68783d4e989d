#pragma once
// The recipe: everything that a run reads from its TOML file and command line. Names follow verl's leaf names, vLLM's for
// sampling (docs/recipe.md); each key's unit, default and limits stand once, in visit() (recipe.cc), from which reading,
// overrides and --print-config come. The list of keys is frozen by tests/data/recipe_keys.txt.
//
//   Recipe recipe = load_recipe("recipe.toml", {"rollout.n=4"}, RecipeUse::kTrain);
//
// load_recipe reads, applies overrides in order, fills what depends on other keys (resolve) and checks what one key alone
// cannot show (validate). Every error is a UsageError (exit 2). Deterministic; touches no file but the recipe.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/base/config.h"
#include "weft/mesh/parallel_dims.h"
#include "weft/mesh/token_sharing.h"

namespace weft {

// Which command reads the recipe; each needs other keys.
enum class RecipeUse { kTrain, kSft, kEval };

struct ModelRecipe {
  std::string path;
  std::string init = "checkpoint";  // or "random"
};

struct DataRecipe {
  std::vector<std::string> train_files, val_files;
  std::string prompt_key = "prompt";
  int64_t train_batch_size = 128;
  int64_t max_prompt_length = 512, max_response_length = 512;
  bool filter_overlong_prompts = false;
  bool shuffle = true;
  int64_t seed = -1;  // resolved: trainer.seed
  int64_t train_max_samples = -1, val_max_samples = -1;
  ConfigTable chat_template_kwargs;
};

struct ValSamplingRecipe {
  int64_t n = 1;
  double temperature = 0.0, top_p = 1.0;
  int64_t top_k = 0;
  double min_p = 0.0;
};

struct RolloutRecipe {
  std::string mesh, ranks;  // empty: dp over all
  std::string dtype = "auto";
  int64_t n = 8;
  double temperature = 1.0, top_p = 1.0;
  int64_t top_k = 0;  // resolved: -1 becomes 0
  double min_p = 0.0;
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;
  ConfigTable logit_bias;
  int64_t min_tokens = 0;
  bool ignore_eos = false;
  std::string logprobs_mode = "processed_logprobs";
  int64_t seed = -1;  // resolved: trainer.seed
  int64_t max_num_seqs = 256, max_num_batched_tokens = 8192;
  int64_t kv_cache_tokens = 0;
  int64_t block_size = 16;
  std::string running = "pause";
  ValSamplingRecipe val_kwargs;
};

struct OptimRecipe {
  double lr = 1e-6, weight_decay = 0.01;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8, clip_grad = 1.0;
  std::string lr_scheduler_type = "constant";
  int64_t lr_warmup_steps = 0;
  double min_lr_ratio = 0.0;
};

struct ActorRecipe {
  std::string mesh = "fsdp=1", ranks;  // ranks empty: all
  std::vector<std::string> plan;
  std::string cp_split = "zigzag";
  bool sequence_parallel = false;
  std::string param_dtype = "auto";  // resolved spelling: auto, float32 or bfloat16
  int64_t mini_batch_size = 0;       // resolved: data.train_batch_size
  int64_t ppo_epochs = 1;
  bool shuffle = false;
  int64_t max_tokens_per_micro_batch = 16384;
  double clip_ratio_low = 0.2, clip_ratio_high = 0.2, clip_ratio_c = 3.0;
  double tau_pos = 1.0, tau_neg = 1.05;
  double off_policy_mask_threshold = 0.0;
  std::string loss_mode = "vanilla", loss_agg_mode = "token-mean";
  bool use_kl_loss = false;
  double kl_loss_coef = 0.001;
  std::string kl_loss_type = "low_var_kl";
  bool kl_loss_unbiased = false;
  double entropy_coeff = 0.0;
  double router_aux_loss_coef = 0.0;
  bool recompute = false;
  bool mask_truncated = false;
  OptimRecipe optim;
};

struct KlCtrlRecipe {
  std::string type = "fixed";
  double kl_coef = 0.001;
  double target_kl = 0.1;
  double horizon = 10000;
};

struct FilterGroupsRecipe {
  bool enable = false;
  std::string metric = "reward";
  int64_t max_num_gen_batches = 0;
};

struct RolloutCorrectionRecipe {
  std::string rollout_is = "null";
  std::string rollout_is_threshold = "2.0";
  bool rollout_is_batch_normalize = false;
  std::string rollout_rs = "null";
  std::string rollout_rs_threshold;
  double rollout_token_veto_threshold = 0.0;
  std::string bypass_mode = "auto";
};

struct AlgorithmRecipe {
  std::string adv_estimator = "grpo";
  bool norm_adv_by_std_in_grpo = true;
  double adv_eps = 1e-6;
  double gamma = 1.0, lam = 1.0;
  bool use_kl_in_reward = false;
  std::string kl_penalty = "kl";
  KlCtrlRecipe kl_ctrl;
  FilterGroupsRecipe filter_groups;
  double teacher_kl_coef = 1.0;
  RolloutCorrectionRecipe rollout_correction;
};

struct OverlongBufferRecipe {
  bool enable = false;
  int64_t len = 0;
  double penalty_factor = 1.0;
};

struct RewardRecipe {
  std::vector<std::string> funcs;
  std::vector<double> weights;  // resolved: one for each of funcs, then command
  std::vector<std::string> command;
  ConfigTable kwargs;
  std::string ground_truth_key = "auto";
  double timeout = 60.0;
  int64_t workers = 0;  // resolved by the pool: threads
  OverlongBufferRecipe overlong_buffer;
  std::string on_nan = "stop";
  std::string python = "python3";
};

struct ReferenceRecipe {
  std::string path;         // resolved: model.path
  std::string mesh, ranks;  // empty: as the actor's
};

struct CriticRecipe {
  std::string path;         // resolved: model.path
  std::string mesh, ranks;  // empty: as the actor's
  double cliprange_value = 0.5;
  std::string loss_agg_mode = "token-mean";
  int64_t ppo_epochs = 0;  // resolved: actor.ppo_epochs
  bool recompute = false;
  OptimRecipe optim{.lr = 1e-5};
};

struct RewardModelRecipe {
  std::string path;         // none: no reward model
  std::string mesh, ranks;  // empty: as the actor's
  double weight = 1.0;
};

struct RefitRecipe {
  std::string mode = "auto";
  int64_t watermark_mb = 64;
  bool verify = true;
};

struct MemoryRecipe {
  std::string limit;      // of a process; empty: none
  std::string store_dir;  // resolved: in the run's directory
};

struct SftRecipe {
  int64_t max_length = 1024;
  bool completion_only_loss = true;
};

struct TrainerRecipe {
  int64_t total_training_steps = 0, total_epochs = 1;
  int64_t critic_warmup = 0;
  int64_t test_freq = 10;
  bool val_before_train = true;
  int64_t save_freq = -1, max_ckpt_to_keep = 3;
  std::string resume_mode = "auto", resume_from_path;
  std::string run_name, runs_dir = "runs";
  std::vector<std::string> logger = {"console", "tensorboard"};
  std::string metric_aliases = "none";
  bool save_samples = true;
  std::string parity = "auto";
  std::string device = "cpu";
  int64_t threads = 0;
  int64_t seed = 1;
};

struct CommRecipe {
  double timeout = 600, heartbeat = 10;
  std::string progress = "auto";
};

struct Recipe {
  ModelRecipe model;
  DataRecipe data;
  RolloutRecipe rollout;
  ActorRecipe actor;
  AlgorithmRecipe algorithm;
  std::string router_replay_mode = "disabled";
  RewardRecipe reward;
  ReferenceRecipe reference;
  std::string teacher_path;  // none: no distillation
  CriticRecipe critic;
  RewardModelRecipe reward_model;
  RefitRecipe refit;
  MemoryRecipe memory;
  SftRecipe sft;
  TrainerRecipe trainer;
  CommRecipe comm;

  void visit(ConfigFields& fields);
  std::string run_dir() const { return trainer.runs_dir + "/" + trainer.run_name; }
  // A frozen reference model is needed for KL in the loss or the reward.
  bool needs_reference() const { return actor.use_kl_loss || algorithm.use_kl_in_reward; }
  bool needs_critic() const { return algorithm.adv_estimator == "gae"; }
};

// Names that a user's own registry adds to ours; messages list both.
struct RecipeChoices {
  std::vector<std::string> loss_modes;      // beside the built-in ones of weft/rl
  std::vector<std::string> adv_estimators;  // beside grpo, rloo, ...
  std::vector<std::string> corrections;     // beside token, sequence, geometric
};

// Names of TRL, verl, vLLM and torchtitan, and keys of ours whose feature is not built yet.
const ConfigNames& recipe_names();

Recipe load_recipe(const std::string& path, const std::vector<std::string>& overrides, RecipeUse use,
                   const RecipeChoices& choices = {});
// `path` gives messages and, by its stem, the default run name.
Recipe parse_recipe(std::string_view toml, const std::string& path, const std::vector<std::string>& overrides, RecipeUse use,
                    const RecipeChoices& choices = {});

// Fills defaults that depend on other keys. Idempotent.
void resolve_recipe(Recipe& recipe, const std::string& path);
// UsageError that names all keys of a contradiction and what to change.
void validate_recipe(const Recipe& recipe, RecipeUse use, const RecipeChoices& choices = {});

// The resolved recipe with docs and defaults as comments; reading it back gives the same recipe.
std::string print_recipe(const Recipe& recipe);

// rollout.logit_bias as (token id, bias), ascending ids.
std::vector<std::pair<int64_t, double>> parse_logit_bias(const ConfigTable& table);

// The ranks of actor.mesh. `world`: how many a launcher started; 0: as many as it says. UsageError for what does not fit or is
// not built.
ParallelDims actor_mesh(const Recipe& r, int64_t world);
TokenSharing actor_sharing(const Recipe& r);

}  // namespace weft
