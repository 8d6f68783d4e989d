// Bad input through the program: each mistake has its exit code and a message that names what, where and what to do; nothing is
// lost.

#include <ATen/Context.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "weft/base/subprocess.h"
#include "weft/cli/weft.h"
#include "weft/io/safetensors.h"
#include "weft/train/test_runs.h"
#include "weft/train/train_state.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;
using Json = nlohmann::ordered_json;

struct Result {
  int code = 0;
  std::string out, error;
};

Result run(const Words& words, const Registry& registry = {}) {
  Words all = words;
  all.insert(all.begin(), "weft");
  std::vector<char*> argv;
  for (std::string& w : all) argv.push_back(w.data());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Result r;
  r.code = weft::main(static_cast<int>(argv.size()), argv.data(), registry);
  r.out = testing::internal::GetCapturedStdout();
  r.error = testing::internal::GetCapturedStderr();
  set_num_threads(0);
  return r;
}

// The exit code, and each part of the message. An error is never reported as ours.
void expect_error(const Result& r, int code, const Words& parts) {
  EXPECT_EQ(r.code, code) << r.error;
  for (const std::string& part : parts)
    EXPECT_NE(r.error.find(part), std::string::npos) << "expected '" << part << "' in: " << r.error;
  EXPECT_EQ(r.error.find("internal error"), std::string::npos) << r.error;
}

class BadInput : public testing::Test {
 protected:
  BadInput() {
    clear_stop_request();
    fs::copy(tiny_model(), model());
    dir_.write("train.jsonl", arithmetic_rows(8));
    write_recipe();
  }
  std::string model() const { return dir_.file("model"); }
  std::string weights() const { return model() + "/model.safetensors"; }
  void write_recipe(const std::string& more = "", const std::string& train = "train.jsonl") const {
    dir_.write("r.toml",
               fmt::format("[model]\npath = \"{}\"\n[reward]\nfuncs = [\"exact_match\"]\n[trainer]\nruns_dir = "
                           "\"{}\"\ntotal_training_steps = 1\n"
                           "[rollout]\nn = 2\n[data]\ntrain_files = [\"{}\"]\ntrain_batch_size = 2\nmax_prompt_length = 16\n"
                           "max_response_length = 4\n{}",
                           model(), dir_.file("runs"), dir_.file(train), more));
  }
  Result train(const Words& more = {}) const {
    Words words = {"train", dir_.file("r.toml")};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  void edit_config(const std::function<void(Json&)>& change) const {
    Json c = Json::parse(read_bytes(model() + "/config.json"));
    change(c);
    write("model/config.json", c.dump(2));
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(dir_.file(name), std::ios::binary | std::ios::trunc) << bytes;
  }
  // Rewrites the weights with some tensors left out, added or with another shape.
  void edit_weights(const std::function<void(std::vector<TensorToSave>&)>& change) const {
    const std::string copy = dir_.file("before.safetensors");
    fs::rename(weights(), copy);
    const SafetensorsFile file(copy);
    std::vector<TensorToSave> tensors;
    for (const TensorInfo& t : file.tensors())
      tensors.push_back(TensorToSave::from_bytes(t.name, t.dtype, t.shape, file.bytes(t)));
    change(tensors);
    save_safetensors(weights(), tensors);
  }

  TemporaryDirectory dir_;
};

TEST_F(BadInput, InspectFindsADamagedByteOfACheckpoint) {
  LoadedModel m = load_model(model(), DType::kF32);
  const Optimizer optimizer(m.model->parameters(), OptimRecipe{}, 10);
  save_checkpoint(dir_.file("checkpoints"), m, optimizer, {}, 0);
  const std::string dir = dir_.file("checkpoints/global_step_0"), file = dir + "/huggingface/model.safetensors";
  const Result good = run({"inspect", dir});
  EXPECT_EQ(good.code, kExitDone) << good.error;
  EXPECT_NE(good.out.find("sizes and hashes are those of manifest.json"), std::string::npos) << good.out;
  EXPECT_NE(good.out.find("qwen3_moe"), std::string::npos) << good.out;
  std::string bytes = read_bytes(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
  expect_error(run({"inspect", dir}), kExitFailed, {file, "is damaged"});
}

TEST_F(BadInput, TheRecipeOfTheseTestsRuns) {
  const Result r = train();
  EXPECT_EQ(r.code, kExitDone) << r.error;
}

TEST_F(BadInput, TruncatedWeights) {
  fs::resize_file(weights(), fs::file_size(weights()) - 100);
  expect_error(train(), kExitFailed, {weights()});
  fs::resize_file(weights(), 5);
  expect_error(train(), kExitFailed, {weights()});
  fs::resize_file(weights(), 0);
  expect_error(train(), kExitFailed, {weights()});
}

TEST_F(BadInput, HeaderThatLies) {
  const std::string good = read_bytes(weights());
  std::string huge = good;
  huge.replace(0, 8, std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8));  // header of 9e18 bytes
  write("model/model.safetensors", huge);
  expect_error(run({"inspect", model()}), kExitFailed, {weights(), "header"});
  std::string overlap = good;
  const size_t at = overlap.find("\"data_offsets\":[");
  ASSERT_NE(at, std::string::npos);
  const size_t digit = overlap.find(',', at) - 1;
  overlap[digit] = overlap[digit] == '9' ? '8' : static_cast<char>(overlap[digit] + 1);
  write("model/model.safetensors", overlap);
  expect_error(run({"inspect", model()}), kExitFailed, {weights()});
}

TEST_F(BadInput, MissingExtraAndMisshapenTensorsAreNamed) {
  const std::vector<float> zeros(64, 0.0f);
  const std::string good = read_bytes(weights());
  edit_weights([](std::vector<TensorToSave>& tensors) {
    std::erase_if(tensors, [](const TensorToSave& t) { return t.name == "model.layers.1.mlp.experts.2.up_proj.weight"; });
  });
  expect_error(train(), kExitFailed, {model(), "missing", "model.layers.1.mlp.experts.2.up_proj.weight"});
  write("model/model.safetensors", good);
  edit_weights([&](std::vector<TensorToSave>& tensors) {
    tensors.push_back(TensorToSave::from_bytes("model.layers.9.extra", DType::kF32, {64}, std::as_bytes(std::span(zeros))));
  });
  expect_error(train(), kExitFailed, {model(), "model.layers.9.extra"});
  write("model/model.safetensors", good);
  edit_weights([&](std::vector<TensorToSave>& tensors) {
    for (TensorToSave& t : tensors)
      if (t.name == "model.layers.0.self_attn.q_norm.weight")
        t = TensorToSave::from_bytes(t.name, DType::kF32, {64}, std::as_bytes(std::span(zeros)));
  });
  expect_error(train(), kExitFailed, {model(), "model.layers.0.self_attn.q_norm.weight", "64", "8"});
}

TEST_F(BadInput, TensorOfIntegers) {
  std::vector<int32_t> ints(8, 1);
  edit_weights([&](std::vector<TensorToSave>& tensors) {
    for (TensorToSave& t : tensors)
      if (t.name == "model.layers.0.self_attn.q_norm.weight")
        t = TensorToSave::from_bytes(t.name, DType::kI32, {8}, std::as_bytes(std::span(ints)));
  });
  expect_error(train(), kExitFailed, {"model.layers.0.self_attn.q_norm.weight"});
}

TEST_F(BadInput, ModelsThatAreNoneOfOurs) {
  edit_config([](Json& c) { c["model_type"] = "gpt9", c["architectures"] = {"Gpt9ForCausalLM"}; });
  expect_error(train(), kExitFailed, {model() + "/config.json", "gpt9", "qwen3_moe"});
  edit_config([](Json& c) {
    c["model_type"] = "qwen3_moe", c["architectures"] = {"Qwen3MoeForCausalLM"}, c["use_sliding_window"] = true,
    c["sliding_window"] = 8;
  });
  expect_error(train(), kExitFailed, {"config.json", "sliding_window"});
  edit_config([](Json& c) { c["use_sliding_window"] = false, c["sliding_window"] = nullptr, c["hidden_act"] = "gelu"; });
  expect_error(train(), kExitFailed, {"config.json", "hidden_act", "gelu"});
  edit_config([](Json& c) { c["hidden_act"] = "silu", c["mystery_gate"] = 3; });
  expect_error(train(), kExitFailed, {"config.json", "mystery_gate"});
  write("model/config.json", "{\"model_type\": \"qwen3_moe\"");
  expect_error(train(), kExitFailed, {"config.json"});
  fs::remove(model() + "/config.json");
  expect_error(train(), kExitFailed, {"config.json"});
}

TEST_F(BadInput, SizesInTheConfigThatDoNotFit) {
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, Json>>{{"num_experts_per_tok", 5},
                                                                                      {"num_key_value_heads", 3},
                                                                                      {"num_hidden_layers", -1},
                                                                                      {"hidden_size", 0},
                                                                                      {"vocab_size", "17"},
                                                                                      {"num_hidden_layers", int64_t{1} << 40}}) {
    const std::string before = read_bytes(model() + "/config.json");
    edit_config([&](Json& c) { c[key] = value; });
    expect_error(run({"inspect", model()}), kExitFailed, {"config.json"});
    write("model/config.json", before);
  }
}

TEST_F(BadInput, ModelThatIsNotThere) {
  expect_error(train({"model.path=" + dir_.file("nowhere")}), kExitFailed, {"nowhere"});
  expect_error(run({"check", model()}), kExitFailed, {"golden.safetensors"});
}

TEST_F(BadInput, MalformedTokenizer) {
  const std::string good = read_bytes(model() + "/tokenizer.json");
  Json unknown = Json::parse(good), type = unknown;
  unknown["pre_tokenizer"] = {{"type", "Sorcery"}};
  type["model"]["vocab"] = 3;
  for (const std::string& bad : {good.substr(0, good.size() / 2), std::string("[]"), unknown.dump(), type.dump()}) {
    write("model/tokenizer.json", bad);
    expect_error(train(), kExitFailed, {"tokenizer.json"});
  }
  fs::remove(model() + "/tokenizer.json");
  expect_error(train(), kExitFailed, {"tokenizer.json"});
}

TEST_F(BadInput, MalformedRowsNameFileAndLine) {
  const std::string good = arithmetic_rows(3);
  const struct {
    std::string rows;
    Words parts;
  } cases[] = {{good + "{\"prompt\": \"1+\n", {"train.jsonl", "line 4"}},
               {good + "\n[1, 2]\n", {"train.jsonl", "line 5"}},
               {good + "{\"prompt\": \"\xff\xfe\"}\n", {"train.jsonl", "line 4", "UTF-8"}},
               {good + "{\"question\": \"1+1=\"}\n", {"train.jsonl", "line 4", "prompt"}},
               {good + "{\"prompt\": \"1+1=\", \"prompt_ids\": [99]}\n", {"train.jsonl", "line 4", "99"}},
               {good + "{\"prompt\": \"" + std::string(40, '1') + "\"}\n",
                {"train.jsonl", "line 4", "41 tokens", "data.max_prompt_length is 16", "filter_overlong_prompts"}},
               {"", {"train.jsonl", "no rows"}},
               {"\n\n", {"train.jsonl", "no rows"}}};
  for (const auto& c : cases) {
    write("train.jsonl", c.rows);
    expect_error(train(), kExitFailed, c.parts);
  }
  fs::remove(dir_.file("train.jsonl"));
  expect_error(train(), kExitFailed, {"train.jsonl"});
  expect_error(train({"data.train_files=" + dir_.path()}), kExitFailed, {dir_.path()});
}

TEST_F(BadInput, PromptLongerThanTheModel) {
  edit_config([](Json& c) { c["max_position_embeddings"] = 8; });
  expect_error(train(), kExitFailed, {"8"});
}

TEST_F(BadInput, RowsWithoutGroundTruth) {
  write("train.jsonl", "{\"prompt\": \"1+1=\"}\n{\"prompt\": \"1+2=\"}\n");
  expect_error(train(), kExitFailed, {"train.jsonl", "exact_match"});
}

TEST_F(BadInput, RecipeMistakes) {
  const struct {
    std::string more;
    Words overrides, parts;
  } cases[] = {{"max_respose_length = 5\n", {}, {"r.toml", "max_respose_length", "max_response_length"}},
               {"[grpo]\nnum_generations = 4\n", {}, {"num_generations", "rollout.n"}},
               {"[actor]\nppo_epochs = \"two\"\n", {}, {"r.toml", "actor.ppo_epochs", "integer"}},
               {"[actor\n", {}, {"r.toml"}},
               {"", {"rollout.n"}, {"rollout.n"}},
               {"", {"rollout.m=3"}, {"rollout.m"}},
               {"", {"rollout.n=three"}, {"rollout.n", "three"}},
               {"", {"rollout.n=0"}, {"rollout.n"}},
               {"", {"rollout.n=1"}, {"rollout.n = 1", "group of one"}},
               {"", {"rollout.temperature=0"}, {"rollout.temperature"}},
               {"", {"actor.loss_mode=vanila"}, {"vanila", "vanilla"}},
               {"", {"algorithm.adv_estimator=gea"}, {"gea", "gae"}},
               {"", {"reward.funcs=exact_mach"}, {"exact_mach", "exact_match"}},
               {"", {"data.train_batch_size=64"}, {"64", "8"}},
               {"", {"router_replay.mode=R2", "trainer.parity=require"}, {"R2"}}};
  for (const auto& c : cases) {
    write_recipe(c.more);
    expect_error(train(c.overrides), kExitUsage, c.parts);
  }
  expect_error(run({"train", dir_.file("missing.toml")}), kExitUsage, {"missing.toml"});
  write_recipe();
  expect_error(train({"reward.funcs=no_such.py:fn"}), kExitFailed, {"no_such.py", "reward.funcs"});
  EXPECT_FALSE(fs::exists(dir_.file("runs"))) << "a run directory was made for a recipe that is wrong";
}

TEST_F(BadInput, CommandMistakes) {
  expect_error(run({}), kExitUsage, {"weft COMMAND"});
  expect_error(run({"trian"}), kExitUsage, {"trian", "did you mean 'train'"});
  expect_error(run({"train"}), kExitUsage, {"RECIPE", "weft train recipe.toml"});
  expect_error(run({"train", "--print-confg", "r.toml"}), kExitUsage, {"--print-confg", "--print-config"});
  expect_error(run({"check", "a", "b"}), kExitUsage, {"'b'"});
  expect_error(run({"generate", model(), "1+", "--n"}), kExitUsage, {"--n needs a value"});
  expect_error(run({"generate", model(), "1+", "--n", "0"}), kExitUsage, {"--n 0"});
  expect_error(run({"generate", model(), "1+", "--top-p", "much"}), kExitUsage, {"--top-p much"});
  expect_error(run({"check", model(), "--param-dtype", "int4"}), kExitUsage, {"int4", "bfloat16"});
  // Who asked for so many threads.
  expect_error(train({"actor.mesh=fsdp=5000"}), kExitUsage, {"actor.mesh = \"fsdp=5000\": 5000 ranks that are threads"});
  expect_error(train({"actor.ranks=0-2999", "rollout.ranks=3000-5999"}), kExitUsage,
               {"rollout.ranks = \"3000-5999\": 6000 ranks"});
  expect_error(run({"sft", dir_.file("r.toml"), "actor.mesh=fsdp=2,tp=2500"}), kExitUsage,
               {"actor.mesh = \"fsdp=2,tp=2500\": 5000 ranks"});
  expect_error(run({"check", model(), "--mesh", "fsdp=5000"}), kExitUsage, {"--mesh fsdp=5000: 5000 ranks"});
  const std::string config = model() + "/config.json";
  expect_error(run({"plan", config, "--train", "fsdp=2"}), kExitUsage, {"--rollout"});
  expect_error(run({"plan", config, "--train", "fsdp=2", "--rollout", "fsdp=2"}), kExitUsage, {"unknown axis 'fsdp'"});
  expect_error(run({"plan", config, "--train", "fsdp=2,tp=16", "--rollout", "dp=2"}), kExitUsage, {"nearest meshes that work"});
  expect_error(run({"plan", config, "--train", "fsdp=2", "--rollout", "dp=2", "--bandwidth", "50,tp=fast"}), kExitUsage,
               {"fast"});
  expect_error(run({"plan", config + "x", "--train", "fsdp=2", "--rollout", "dp=2"}), kExitFailed, {"config.jsonx"});
  const Result plan = run({"plan", config, "--train", "fsdp=2", "--rollout", "dp=2", "--json"});
  EXPECT_EQ(plan.code, kExitDone);
  EXPECT_EQ(Json::parse(plan.out)["job_ranks"], 2);
  for (const char* command : {"train", "sft", "generate", "eval", "check", "tokenize", "plan", "inspect", "report", "doctor", "convert"}) {
    const Result r = run({command, "--help"});
    EXPECT_EQ(r.code, kExitDone) << command;
    EXPECT_NE(r.out.find("Example"), std::string::npos) << command;
  }
}

TEST_F(BadInput, Convert) {
  LoadedModel m = load_model(model(), DType::kF32);
  const Optimizer optimizer(m.model->parameters(), OptimRecipe{}, 10);
  TrainProgress progress;
  progress.command = "train", progress.step = 4;
  save_checkpoint(dir_.file("runs/r/checkpoints"), m, optimizer, progress, 0);
  const std::string from = dir_.file("runs/r"), out = dir_.file("out"), x = dir_.file("x");
  const Result good = run({"convert", from, out, "--mesh", "fsdp=2,ep=2"});
  EXPECT_EQ(good.code, kExitDone) << good.error;
  EXPECT_NE(good.out.find("the fp32 masters of step 4"), std::string::npos) << good.out;
  EXPECT_TRUE(read_bytes(out + "/model.safetensors") == read_bytes(from + "/checkpoints/global_step_4/huggingface/model.safetensors"));
  expect_error(run({"convert", from, out}), kExitUsage, {out, "already exists", "--overwrite"});
  EXPECT_EQ(run({"convert", model(), out, "--overwrite", "--dtype", "bfloat16", "--max-shard-size", "20KB"}).code, kExitDone);
  EXPECT_TRUE(fs::exists(out + "/model.safetensors.index.json"));
  EXPECT_EQ(run({"generate", out, "1+2=", "--max-tokens", "2"}).code, kExitDone);

  expect_error(run({"convert", from}), kExitUsage, {"CHECKPOINT OUT"});
  expect_error(run({"convert", from, x, "--dtype", "int8"}), kExitUsage, {"--dtype int8", "bfloat16"});
  for (const char* size : {"5 GB", "0", "-1", "5gb", "99999999999999TB", "GB"})
    expect_error(run({"convert", from, x, "--max-shard-size", size}), kExitUsage, {"--max-shard-size", size, "5GB"});
  expect_error(run({"convert", from, x, "--mesh", "fsdp=2,tp=3"}), kExitUsage, {"tp can be"});
  expect_error(run({"convert", dir_.file("runs/nobody"), x}), kExitFailed, {"runs/nobody"});
  expect_error(run({"convert", "", x}), kExitUsage, {"empty"});
  expect_error(run({"convert", from, ""}), kExitUsage, {"empty"});
  expect_error(run({"convert", from, dir_.file("train.jsonl") + "/x"}), kExitFailed, {"train.jsonl/x"});
  fs::resize_file(weights(), fs::file_size(weights()) / 2);
  expect_error(run({"convert", model(), x}), kExitFailed, {weights()});
  EXPECT_FALSE(fs::exists(x));
}

TEST_F(BadInput, InspectOfMeshes) {
  const Words refit = {"inspect", "refit", "fsdp=2,ep=2", "dp=1,tp=2"};
  const auto with = [&](const Words& more) {
    Words words = refit;
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  const Result text = with({"--model", model(), "--name", "*.o_proj.weight"});
  EXPECT_EQ(text.code, kExitDone) << text.error;
  EXPECT_NE(text.out.find("byte ratio 1.000"), std::string::npos) << text.out;
  const Result json = with({"--model", model() + "/config.json", "--json", "--train-ranks", "0-1", "--rollout-ranks", "2,4"});
  EXPECT_EQ(Json::parse(json.out)["rollout"]["ranks"], (std::vector<int>{2, 4}));
  expect_error(with({}), kExitUsage, {"needs --model"});
  expect_error(with({"--model", dir_.file("nowhere")}), kExitFailed, {"nowhere"});
  expect_error(with({"--model", model(), "--mesh", "fsdp=2"}), kExitUsage, {"--mesh belongs to weft inspect DIR"});
  expect_error(with({"--model", model(), "--rollout-dtype", "float16"}), kExitUsage, {"--rollout-dtype float16"});
  expect_error(with({"--model", model(), "--rollout-ranks", "1-2"}), kExitUsage, {"the same ranks, or none in common"});
  expect_error(run({"inspect", "refit", "fsdp=2", "--model", model()}), kExitUsage, {"refit TRAIN_MESH ROLLOUT_MESH"});
  expect_error(run({"inspect", "refit", "fsdp=2,tp=16", "dp=2", "--model", model()}), kExitUsage, {"nearest meshes that work"});
  expect_error(run({"inspect", model(), "--name", "*"}), kExitUsage, {"--name belongs to weft inspect refit"});
  // A mesh that does not fit is an error alone; one of many ranks is a matter of layouts, not of ranks.
  const Result bad = run({"inspect", model(), "--mesh", "tp=16"});
  expect_error(bad, kExitUsage, {"tp can be"});
  EXPECT_EQ(bad.out, "");
  const Result large = run({"inspect", model(), "--mesh", "fsdp=65536"});
  EXPECT_EQ(large.code, kExitDone);
  EXPECT_NE(large.out.find("65536 ranks"), std::string::npos);
}

TEST_F(BadInput, CudaWithoutAGpu) {
  if (at::hasCUDA()) {
    EXPECT_EQ(run({"inspect", model()}).code, kExitDone);
    return;
  }
  expect_error(train({"trainer.device=cuda"}), kExitUsage, {"cuda", "device = \"cpu\""});
  expect_error(run({"check", model(), "--device", "cuda"}), kExitUsage, {"cuda", "device = \"cpu\""});
  expect_error(train({"trainer.device=tpu"}), kExitUsage, {"tpu", "cpu"});
}

TEST_F(BadInput, DenseModelHasNothingToReplay) {
  fs::remove_all(model());
  write_tiny_model(model(), [](auto& c) {
    for (const char* key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
                            "decoder_sparse_step", "mlp_only_layers", "router_aux_loss_coef", "output_router_logits"})
      c.erase(key);
    c["model_type"] = "qwen3", c["architectures"] = {"Qwen3ForCausalLM"};
  });
  EXPECT_EQ(train().code, kExitDone);
  expect_error(train({"router_replay.mode=R3", "trainer.run_name=other"}), kExitUsage, {"router_replay.mode", "no experts"});
}

TEST_F(BadInput, RewardThatIsNotANumber) {
  dir_.write(
      "broken.py",
      "def nan(completions, **kwargs):\n    return [float('nan')] * len(completions)\n\ndef words(completions, **kwargs):\n"
      "    return ['good'] * len(completions)\n");
  for (const char* name : {"nan", "words"})
    expect_error(train({"reward.funcs=" + dir_.file("broken.py") + ":" + name, "reward.workers=1"}), kExitFailed,
                 {"train.jsonl", name});
}

TEST_F(BadInput, CheckpointThatLatestNamesIsDamaged) {
  ASSERT_EQ(train().code, kExitDone);
  const std::string state = dir_.file("runs/r/checkpoints/global_step_1/state/");
  fs::resize_file(state + "optimizer.safetensors", 100);
  expect_error(train({"trainer.total_training_steps=2"}), kExitFailed, {"optimizer.safetensors"});
  fs::remove(dir_.file("runs/r/checkpoints/global_step_1/manifest.json"));
  expect_error(train({"trainer.total_training_steps=2"}), kExitFailed, {"global_step_1", "not complete"});
  expect_error(train({"trainer.resume_mode=resume_path", "trainer.resume_from_path=" + dir_.file("nowhere")}), kExitFailed,
               {"nowhere"});
}

// The limit on file sizes stands for a disk that is full: the weights of the new checkpoint do not fit.
TEST_F(BadInput, FullDiskKeepsTheOldCheckpoint) {
  ASSERT_EQ(train().code, kExitDone);
  const std::string checkpoints = dir_.file("runs/r/checkpoints"),
                    old = read_bytes(checkpoints + "/global_step_1/state/master.safetensors");
  const auto blocks = fs::file_size(weights()) / 1024 - 8;
  Subprocess program({.argv = {"bash", "-c", fmt::format("ulimit -f {}; exec \"$0\" \"$@\"", blocks), WEFT_PROGRAM, "train",
                               dir_.file("r.toml"), "trainer.total_training_steps=2", "trainer.threads=1"},
                      .working_directory = {},
                      .environment = {},
                      .on_stderr_line = {}});
  program.close_input();
  std::string line;
  while (program.read_line(&line, 60) == PipeStatus::kDone) {
  }
  EXPECT_TRUE(program.finish(60));
  EXPECT_EQ(program.exit_code(), kExitFailed) << program.exit_text() << "\n" << program.stderr_tail();
  EXPECT_NE(program.stderr_tail().find("global_step_2"), std::string::npos) << program.stderr_tail();
  Words names;
  for (const auto& e : fs::directory_iterator(checkpoints)) names.push_back(e.path().filename().string());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (Words{"global_step_1", "latest"})) << "nothing half written stays";
  EXPECT_EQ(read_bytes(checkpoints + "/latest"), "global_step_1\n");
  EXPECT_EQ(read_bytes(checkpoints + "/global_step_1/state/master.safetensors"), old);
  EXPECT_EQ(train({"trainer.total_training_steps=2"}).code, kExitDone) << "goes on once there is room";
  EXPECT_EQ(read_bytes(checkpoints + "/latest"), "global_step_2\n");
}

// A signal to the program: exit 75 once everything is saved, and the same command goes on.
TEST_F(BadInput, SignalStopsTheProgramAfterACheckpoint) {
  Subprocess program(
      {.argv = {WEFT_PROGRAM, "train", dir_.file("r.toml"), "trainer.total_training_steps=100000", "trainer.threads=1"},
       .working_directory = {},
       .environment = {},
       .on_stderr_line = {}});
  const std::string metrics = dir_.file("runs/r/metrics.jsonl");
  std::string line;
  for (int i = 0; i < 3000 && (!fs::exists(metrics) || fs::file_size(metrics) == 0); ++i)
    ASSERT_NE(program.read_line(&line, 0.01), PipeStatus::kClosed);
  ::kill(static_cast<pid_t>(program.pid()), SIGTERM);
  while (program.read_line(&line, 60) == PipeStatus::kDone) {
  }
  EXPECT_TRUE(program.finish(60));
  EXPECT_EQ(program.exit_code(), kExitStopped) << program.stderr_tail();
  EXPECT_NE(program.stderr_tail().find("stopped by SIGTERM"), std::string::npos) << program.stderr_tail();
  EXPECT_NE(program.stderr_tail().find("run the same command to go on"), std::string::npos);
  const std::string latest = read_bytes(dir_.file("runs/r/checkpoints/latest"));
  const int64_t step = std::stoll(latest.substr(latest.rfind('_') + 1));
  EXPECT_GE(step, 1);
  EXPECT_EQ(train({fmt::format("trainer.total_training_steps={}", step + 1)}).code, kExitDone);
}

TEST_F(BadInput, StandardInputOfTokenizeNamesTheLine) {
  // In a child: standard input is the program's.
  Subprocess program(
      {.argv = {WEFT_PROGRAM, "tokenize", model()}, .working_directory = {}, .environment = {}, .on_stderr_line = {}});
  std::string line;
  EXPECT_EQ(program.write_line("{\"text\": \"1+2\"}", 60), PipeStatus::kDone);
  EXPECT_EQ(program.read_line(&line, 60), PipeStatus::kDone);
  EXPECT_EQ(Json::parse(line)["ids"], Json({1, 4, 13, 5}));
  program.write_line("{\"text\": ", 60);
  program.close_input();
  while (program.read_line(&line, 60) == PipeStatus::kDone) {
  }
  EXPECT_TRUE(program.finish(60));
  EXPECT_EQ(program.exit_code(), kExitFailed);
  EXPECT_NE(program.stderr_tail().find("standard input: line 2"), std::string::npos) << program.stderr_tail();
}

}  // namespace
}  // namespace weft
