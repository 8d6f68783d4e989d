#include "weft/train/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "weft/base/error.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kSmallest[] = "model.path = 'm'\ndata.train_files = 't.jsonl'\nreward.funcs = 'last_number'\n";

Recipe parse(const std::string& text, const std::vector<std::string>& overrides = {}, RecipeUse use = RecipeUse::kTrain) {
  return parse_recipe(text, "dir/my_run.toml", overrides, use);
}

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}, RecipeUse use = RecipeUse::kTrain) {
  try {
    parse(text, overrides, use);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "no error";
}

std::string override_error(const std::string& override) { return error_of(kSmallest, {override}); }

ConfigFields fields_of(Recipe& recipe) {
  ConfigFields fields;
  recipe.visit(fields);
  return fields;
}

TEST(Recipe, SmallestRecipeHasThreeKeys) {
  const Recipe r = parse(kSmallest);
  EXPECT_THAT(r.data.train_files, ElementsAre("t.jsonl"));
  EXPECT_EQ(r.trainer.run_name, "my_run");
  EXPECT_EQ(r.run_dir(), "runs/my_run");
  EXPECT_EQ(r.actor.mini_batch_size, 128);
  EXPECT_THAT(r.reward.weights, ElementsAre(1.0));
  EXPECT_EQ(r.reference.path, "m");
  EXPECT_EQ(r.data.seed, r.trainer.seed);
  EXPECT_EQ(r.rollout.seed, r.trainer.seed);
  EXPECT_FALSE(r.needs_reference());
}

TEST(Recipe, EachOfTheThreeKeysIsAskedFor) {
  EXPECT_THAT(error_of("data.train_files = 't'\nreward.funcs = 'x'"), HasSubstr("model.path"));
  EXPECT_THAT(error_of("model.path = 't'\nreward.funcs = 'x'"), HasSubstr("data.train_files"));
  EXPECT_THAT(error_of("model.path = 't'\ndata.train_files = 'x'"), HasSubstr("reward.funcs"));
}

TEST(Recipe, DefaultsAreTheDocumentedOnes) {
  const Recipe r = parse(kSmallest);
  EXPECT_EQ(r.data.max_prompt_length, 512);
  EXPECT_EQ(r.data.max_response_length, 512);
  EXPECT_FALSE(r.data.filter_overlong_prompts);
  EXPECT_EQ(r.data.train_batch_size, 128);
  EXPECT_EQ(r.data.prompt_key, "prompt");
  EXPECT_EQ(r.rollout.n, 8);
  EXPECT_EQ(r.rollout.temperature, 1.0);
  EXPECT_EQ(r.rollout.top_p, 1.0);
  EXPECT_EQ(r.rollout.top_k, 0);
  EXPECT_EQ(r.rollout.min_p, 0.0);
  EXPECT_EQ(r.rollout.logprobs_mode, "processed_logprobs");
  EXPECT_EQ(r.rollout.max_num_batched_tokens, 8192);
  EXPECT_EQ(r.actor.ppo_epochs, 1);
  EXPECT_EQ(r.actor.max_tokens_per_micro_batch, 16384);
  EXPECT_EQ(r.actor.clip_ratio_low, 0.2);
  EXPECT_EQ(r.actor.clip_ratio_high, 0.2);
  EXPECT_EQ(r.actor.clip_ratio_c, 3.0);
  EXPECT_EQ(r.actor.loss_mode, "vanilla");
  EXPECT_EQ(r.actor.loss_agg_mode, "token-mean");
  EXPECT_FALSE(r.actor.use_kl_loss);
  EXPECT_EQ(r.actor.kl_loss_coef, 0.001);
  EXPECT_EQ(r.actor.kl_loss_type, "low_var_kl");
  EXPECT_EQ(r.actor.param_dtype, "auto");
  EXPECT_EQ(r.actor.optim.lr, 1e-6);
  EXPECT_EQ(r.actor.optim.weight_decay, 0.01);
  EXPECT_THAT(r.actor.optim.betas, ElementsAre(0.9, 0.999));
  EXPECT_EQ(r.actor.optim.clip_grad, 1.0);
  EXPECT_EQ(r.actor.optim.lr_scheduler_type, "constant");
  EXPECT_EQ(r.actor.optim.lr_warmup_steps, 0);
  EXPECT_EQ(r.algorithm.adv_estimator, "grpo");
  EXPECT_TRUE(r.algorithm.norm_adv_by_std_in_grpo);
  EXPECT_EQ(r.algorithm.adv_eps, 1e-6);
  EXPECT_EQ(r.algorithm.rollout_correction.rollout_is, "null");
  EXPECT_EQ(r.algorithm.rollout_correction.rollout_is_threshold, "2.0");
  EXPECT_EQ(r.algorithm.rollout_correction.bypass_mode, "auto");
  EXPECT_EQ(r.router_replay_mode, "disabled");
  EXPECT_EQ(r.reward.ground_truth_key, "auto");
  EXPECT_EQ(r.trainer.test_freq, 10);
  EXPECT_TRUE(r.trainer.val_before_train);
  EXPECT_EQ(r.trainer.total_epochs, 1);
  EXPECT_EQ(r.trainer.max_ckpt_to_keep, 3);
  EXPECT_EQ(r.trainer.resume_mode, "auto");
  EXPECT_THAT(r.trainer.logger, ElementsAre("console", "tensorboard"));
}

TEST(Recipe, KeysAreFrozen) {
  Recipe recipe;
  const ConfigFields fields = fields_of(recipe);
  std::string now;
  for (const ConfigField& field : fields.fields()) now += field.key() + " = " + field.default_text() + "\n";
  std::ifstream in(WEFT_SOURCE_DIR "/tests/data/recipe_keys.txt");
  std::stringstream frozen;
  frozen << in.rdbuf();
  EXPECT_EQ(now, frozen.str()) << "users' recipes hold these keys: change tests/data/recipe_keys.txt only on purpose";
}

TEST(Recipe, PrintoutReadsBackToTheSameRecipe) {
  const Recipe r = parse(kSmallest, {"rollout.top_k=-1", "actor.param_dtype=bf16", "rollout.logit_bias={\"5\" = -1.5}",
                                     "data.chat_template_kwargs.enable_thinking=false", "actor.mini_batch_size=32",
                                     "algorithm.rollout_correction.bypass_mode=false"});
  EXPECT_EQ(r.rollout.top_k, 0);
  EXPECT_EQ(r.actor.param_dtype, "bfloat16");
  const std::string text = print_recipe(r);
  EXPECT_THAT(text, HasSubstr("mini_batch_size = 32"));
  EXPECT_THAT(text, HasSubstr("param_dtype = \"bfloat16\""));
  EXPECT_EQ(print_recipe(parse(text)), text);
}

TEST(Recipe, EveryKeyHasADoc) {
  Recipe recipe;
  const ConfigFields fields = fields_of(recipe);
  for (const ConfigField& field : fields.fields()) {
    EXPECT_GE(field.doc().size(), 12u) << field.key();
    EXPECT_TRUE(field.doc().ends_with(".")) << field.key();
  }
}

TEST(Recipe, AliasesNameKeysThatExist) {
  Recipe recipe;
  const ConfigFields fields = fields_of(recipe);
  for (const auto& [alias, ours] : recipe_names().aliases) {
    EXPECT_FALSE(fields.find(alias)) << alias << " is a key of ours";
    if (ours.starts_with("nothing: ")) continue;
    EXPECT_TRUE(fields.find(ours.substr(0, ours.find_first_of(" ;,")))) << alias << " -> " << ours;
  }
  for (const auto& [name, sentence] : recipe_names().not_built_yet) {
    const std::string key = name.substr(0, name.find('='));
    EXPECT_EQ(fields.find(key) != nullptr, name != key) << name;
    EXPECT_GE(sentence.size(), 20u) << name;
  }
}

TEST(Recipe, NamesOfOtherFrameworksAreAnswered) {
  EXPECT_THAT(override_error("num_generations=4"), HasSubstr("weft: rollout.n"));
  EXPECT_THAT(override_error("actor_rollout_ref.rollout.n=4"), HasSubstr("weft: rollout.n"));
  EXPECT_THAT(override_error("actor_rollout_ref.actor.ppo_mini_batch_size=4"), HasSubstr("weft: actor.mini_batch_size"));
  EXPECT_THAT(override_error("actor_rollout_ref.actor.optim.lr=4"), HasSubstr("weft: actor.optim.lr"));
  EXPECT_THAT(override_error("actor_rollout_ref.rollout.gpu_memory_utilization=0.4"), HasSubstr("weft: rollout.kv_cache_tokens"));
  EXPECT_THAT(override_error("training.local_batch_size=4"), HasSubstr("weft: actor.max_tokens_per_micro_batch"));
  EXPECT_THAT(override_error("rollout.temprature=4"), HasSubstr("did you mean 'rollout.temperature'?"));
  EXPECT_THAT(override_error("rollout.lr=4"), HasSubstr("did you mean 'actor.optim.lr'?"));
}

TEST(Recipe, WhatIsNotBuiltYetSaysSo) {
  EXPECT_EQ(override_error("rollout.mesh=tp=2"), "no error");
  EXPECT_THAT(override_error("rollout.mesh=fsdp=2"), HasSubstr("rollout.mesh: mesh 'fsdp=2': unknown axis"));
  EXPECT_THAT(override_error("rollout.ranks=3-1"), HasSubstr("rollout.ranks = \"3-1\": 3-1 goes backwards"));
  EXPECT_THAT(override_error("actor.cp_split=ring"), HasSubstr("zigzag"));
  EXPECT_THAT(override_error("actor.plan=[\"* tp cut(x)\"]"), HasSubstr("no placement"));
  EXPECT_EQ(override_error("actor.mesh=fsdp=2,cp=2,tp=2,ep=4,oe=2"), "no error");
  EXPECT_THAT(override_error("actor.mesh=fsdq=2"), HasSubstr("fsdp"));
  EXPECT_THAT(override_error("server.port=8000"), HasSubstr("weft serve is not built yet"));
  EXPECT_THAT(override_error("rollout.multi_turn.max_assistant_turns=3"), HasSubstr("not built yet"));
  EXPECT_THAT(override_error("actor.loss_mode=clip_cov"), HasSubstr("not built yet"));
  EXPECT_EQ(override_error("algorithm.adv_estimator=gae"), "no error");
  EXPECT_THAT(override_error("trainer.logger=[console,wandb]"), HasSubstr("TensorBoard"));
  EXPECT_THAT(error_of("[rollout.multi_turn]\nenable = true"), HasSubstr("dir/my_run.toml:1:10"));
}

TEST(Recipe, ContradictionsNameTheirKeys) {
  const struct {
    std::vector<std::string> overrides;
    const char* expected;
  } cases[] = {
      {{"rollout.temperature=0"}, "greedy"},
      {{"rollout.logprobs_mode=raw_logprobs"}, "raw_logprobs"},
      {{"actor.mini_batch_size=100"}, "actor.mini_batch_size = 100 [prompts] does not divide data.train_batch_size = 128"},
      {{"actor.mini_batch_size=256"}, "does not divide"},
      {{"router_replay.mode=R2", "algorithm.rollout_correction.bypass_mode=true"}, "R2"},
      {{"router_replay.mode=R2", "trainer.parity=require"}, "not promised"},
      {{"trainer.device=cuda", "trainer.parity=require"}, "CUDA"},
      {{"actor.use_kl_loss=true", "algorithm.use_kl_in_reward=true"}, "twice"},
      {{"actor.clip_ratio_c=1"}, "clip_ratio_c"},
      {{"actor.loss_mode=vanila"}, "did you mean \"vanilla\""},
      {{"algorithm.adv_estimator=grpoo"}, "did you mean \"grpo\""},
      {{"rollout.n=1"}, "group of one"},
      {{"rollout.min_tokens=513"}, "rollout.min_tokens = 513"},
      {{"rollout.kv_cache_tokens=1000"}, "1024"},
      {{"rollout.block_size=24"}, "does not divide 64"},
      {{"rollout.top_p=0"}, "top_p"},
      {{"rollout.logit_bias={x = 1}"}, "no token id"},
      {{"rollout.logit_bias={\"1\" = 'a'}"}, "no number"},
      {{"rollout.logit_bias={\"1\" = 1, \"01\" = 2}"}, "twice"},
      {{"rollout.stop=['']"}, "empty"},
      {{"rollout.ignore_eos=true", "actor.mask_truncated=true"}, "nothing would be learnt"},
      {{"reward.weights=[1, 2]"}, "reward.weights has 2 entries for 1"},
      {{"reward.funcs=[a, a]"}, "twice"},
      {{"actor.optim.betas=[0.9]"}, "betas"},
      {{"actor.optim.betas=[0.9, 1]"}, "betas"},
      {{"data.train_files=x.parquet"}, "tools/to_jsonl.py"},
      {{"trainer.run_name=a/b"}, "runs_dir"},
      {{"trainer.resume_mode=resume_path"}, "resume_from_path"},
      {{"trainer.resume_from_path=x"}, "resume_mode"},
      {{"actor.router_aux_loss_coef=0.1"}, "sft"},
      {{"algorithm.rollout_correction.rollout_rs=token_k1"}, "rollout_rs"},
      {{"algorithm.rollout_correction.rollout_is_threshold=x"}, "rollout_is_threshold"},
      {{"actor.kl_loss_type=k9"}, "kl_loss_type"},
      {{"algorithm.rollout_correction.rollout_rs_threshold=2"}, "without"},
      {{"teacher.path=t", "algorithm.teacher_kl_coef=0"}, "for nothing"},
      {{"actor.param_dtype=int8"}, "one of"},
  };
  for (const auto& c : cases) EXPECT_THAT(error_of(kSmallest, c.overrides), HasSubstr(c.expected)) << c.overrides[0];
}

TEST(Recipe, EachCommandAsksForItsOwnKeys) {
  EXPECT_EQ(error_of("model.path = 'm'\ndata.train_files = 't'", {"actor.router_aux_loss_coef=0.1"}, RecipeUse::kSft),
            "no error");
  EXPECT_EQ(error_of("model.path = 'm'\ndata.val_files = 't'\nreward.funcs = 'x'", {}, RecipeUse::kEval), "no error");
  EXPECT_THAT(error_of("model.path = 'm'\nreward.funcs = 'x'", {}, RecipeUse::kEval), HasSubstr("data.val_files"));
  EXPECT_EQ(error_of("model.path = 'm'\ndata.train_files = 't'\nreward.command = ['./score', '-x']"), "no error");
}

TEST(Recipe, UserRegistriesAddNames) {
  const Recipe r = parse_recipe(kSmallest, "r.toml", {"actor.loss_mode=mine"}, RecipeUse::kTrain,
                                {.loss_modes = {"mine"}, .adv_estimators = {}, .corrections = {}});
  EXPECT_EQ(r.actor.loss_mode, "mine");
  EXPECT_EQ(parse_recipe(kSmallest, "r.toml", {"algorithm.rollout_correction.rollout_is=soft"}, RecipeUse::kTrain,
                         {.loss_modes = {}, .adv_estimators = {}, .corrections = {"soft"}})
                .algorithm.rollout_correction.rollout_is,
            "soft");
}

TEST(Recipe, ShippedRecipesAreValid) {
  int count = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(WEFT_SOURCE_DIR "/recipes")) {
    if (file.path().extension() != ".toml") continue;
    const bool sft = file.path().stem().string().ends_with("_sft");
    EXPECT_NO_THROW(load_recipe(file.path().string(), {}, sft ? RecipeUse::kSft : RecipeUse::kTrain)) << file.path();
    ++count;
  }
  EXPECT_GT(count, 15);
}

TEST(Recipe, AlgorithmsThatNeedEachOther) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"algorithm.rollout_correction.rollout_is=tokn"}, "did you mean \"token\""},
      {{"algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=acc"}, "reward"},
      {{"algorithm.filter_groups.enable=true", "rollout.n=1", "algorithm.adv_estimator=remax"}, "group of one"},
      {{"reward.overlong_buffer.enable=true"}, "reward.overlong_buffer.len = 0"},
      {{"actor.kl_loss_unbiased=true"}, "actor.use_kl_loss"},
      {{"algorithm.kl_ctrl.type=adaptive"}, "algorithm.use_kl_in_reward"},
      {{"algorithm.kl_ctrl.type=adaptive", "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.horizon=100"},
       "kl_ctrl.horizon = 100"},
      {{"actor.loss_mode=gmpo", "actor.loss_agg_mode=token-mean"}, "seq-mean-token-mean"},
      {{"reward_model.overlong_buffer.len=4"}, "reward.overlong_buffer.len"},
      {{"use_bias_correction_kl=true"}, "actor.kl_loss_unbiased"},
  };
  for (const auto& [overrides, expected] : cases)
    EXPECT_THAT(error_of(kSmallest, overrides), HasSubstr(expected)) << overrides[0];
}

TEST(Recipe, LogitBiasIsSortedById) {
  EXPECT_THAT(parse_logit_bias({R"({"10": 1, "9": -2.5})"}), ElementsAre(std::pair(9, -2.5), std::pair(10, 1.0)));
}

}  // namespace
}  // namespace weft
