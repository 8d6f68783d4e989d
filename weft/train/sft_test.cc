#include "weft/train/sft.h"

#include <algorithm>

#include "weft/train/test_runs.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Of the shipped tokenizer: 17 characters. Role marks are "+" (user) and "-" (assistant).
constexpr const char* kMarked =
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '-' }}{% generation %}{{ m['content'] + '=' }}{% endgeneration %}"
    "{% else %}{{ '+' + m['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '-' }}{% endif %}";
constexpr const char* kPlain =
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '-' + m['content'] + '=' }}"
    "{% else %}{{ '+' + m['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '-' }}{% endif %}";
constexpr const char* kTwoTurns =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"12\"}, {\"role\": \"assistant\", \"content\": \"34\"}, "
    "{\"role\": \"user\", \"content\": \"5\"}, {\"role\": \"assistant\", \"content\": \"6\"}]}\n";

class SftTest : public RunTest {
 protected:
  Recipe sft_recipe(const std::string& run, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"actor.optim.weight_decay=0", "data.train_batch_size=8"});
    return recipe(run, more, RecipeUse::kSft);
  }
  void train(const std::string& run, int64_t steps, std::vector<std::string> more = {}) {
    more.push_back(fmt::format("trainer.total_training_steps={}", steps));
    SftTrainer(sft_recipe(run, more), registry_).run();
  }
  // A copy of the tiny model with a chat template.
  std::string chat_model(const std::string& jinja) const {
    const std::string dir = dir_.file("chat");
    fs::remove_all(dir);
    fs::copy(tiny_model(), dir);
    std::ofstream(dir + "/chat_template.jinja") << jinja;
    return dir;
  }
  // Text of a row with trained tokens in upper marks: "(...)".
  std::string marked(const std::string& rows, const std::string& dir, const std::vector<std::string>& more = {}) {
    dir_.write("rows.jsonl", rows);
    std::vector<std::string> all = {"model.path=" + dir, "data.train_files=" + dir_.file("rows.jsonl")};
    all.insert(all.end(), more.begin(), more.end());
    const Recipe r = sft_recipe("unused", all);
    const Tokenizer tokenizer = Tokenizer::load(dir);
    const SftSource source(r.data.train_files, r, tokenizer, tokenizer.eos_id(), -1);
    const Trajectory& t = source.row(0);
    EXPECT_EQ(t.response_ids.size(), t.response_mask.size());
    std::string out = tokenizer.decode(t.prompt_ids, false);
    bool on = false;
    for (size_t i = 0; i < t.response_ids.size(); ++i) {
      if ((t.response_mask[i] != 0) != on) out += on ? ")" : "(", on = !on;
      out += tokenizer.decode({&t.response_ids[i], 1}, false);
    }
    return out + (on ? ")" : "");
  }
};

TEST_F(SftTest, CompletionAndEndTokenAreTrained) {
  EXPECT_EQ(marked("{\"prompt\": \"1+2=\", \"completion\": \"3\"}\n", tiny_model()), "<bos>1+2=(3<eos>)");
  EXPECT_EQ(marked("{\"prompt\": \"1+2=\", \"completion\": \"3\"}\n", tiny_model(), {"sft.completion_only_loss=false"}),
            "<bos>(1+2=3<eos>)");
}

TEST_F(SftTest, GenerationSpansAreTrained) { EXPECT_EQ(marked(kTwoTurns, chat_model(kMarked)), "+12-(34=)+5-(6=)"); }

TEST_F(SftTest, AssistantTurnsAreFoundWithoutMarks) {
  EXPECT_EQ(marked(kTwoTurns, chat_model(kPlain)), "+12-(34=)+5-(6=)");
  EXPECT_EQ(marked(kTwoTurns, chat_model(kPlain), {"sft.completion_only_loss=false"}), "+(12-34=+5-6=)");
}

TEST_F(SftTest, TemplateThatRewritesEarlierTurnsIsRefusedByRow) {
  const std::string last_only =
      "{% for m in messages %}{% if loop.last %}{{ '=' }}{% endif %}{{ '+' + m['content'] }}{% endfor %}";
  const std::string text = message_of<ValueError>([&] { marked(kTwoTurns, chat_model(last_only)); });
  EXPECT_NE(text.find("rows.jsonl: line 1"), std::string::npos) << text;
  EXPECT_NE(text.find("{% generation %}"), std::string::npos) << text;
}

TEST_F(SftTest, RowsThatCannotBeTrainedAreErrorsThatNameThem) {
  const struct {
    const char* row;
    std::vector<std::string> more;
    const char* text;
  } cases[] = {{"{\"prompt\": \"1+2=\"}", {}, "'completion'"},
               {"{\"prompt\": 5, \"completion\": \"3\"}", {}, "'completion'"},
               {"{\"text\": \"1+2=3\"}", {}, "'messages'"},
               {"{\"prompt\": \"1+2=\", \"completion\": \"3\"}", {"sft.max_length=6"}, "sft.max_length is 6"},
               {"{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}]}", {}, "no token to train on"},
               {"{\"messages\": 3}", {}, ""},
               {"{\"messages\": [{\"role\": \"user\"}, 7]}", {}, ""}};
  for (const auto& c : cases) {
    const std::string text = message_of<Error>([&] { marked(std::string("\n") + c.row + "\n", chat_model(kPlain), c.more); });
    EXPECT_NE(text.find("rows.jsonl: line 2"), std::string::npos) << c.row << ": " << text;
    EXPECT_NE(text.find(c.text), std::string::npos) << c.row << ": " << text;
  }
  EXPECT_NE(message_of<Error>([&] { marked(kTwoTurns, tiny_model()); }).find("no chat template"), std::string::npos);
}

TEST_F(SftTest, LossGoesDown) {
  train("run", 30, {"actor.optim.lr=0.02", "data.val_files=" + dir_.file("val.jsonl"), "trainer.test_freq=15"});
  const auto rows = metrics("run");
  ASSERT_EQ(rows.size(), 30u);
  EXPECT_GT(rows.front()["sft/loss"].get<double>(), 2.0);
  EXPECT_LT(rows.back()["sft/loss"].get<double>(), 1.5);
  EXPECT_TRUE(rows[14].contains("sft/val_loss"));
  EXPECT_TRUE(rows[29].contains("sft/val_loss"));
  EXPECT_TRUE(fs::exists(run_file("run", "report.html")));
  const LoadedModel again = load_model(run_file("run", "checkpoints/global_step_30/huggingface"), DType::kF32);
  EXPECT_EQ(again.hf.raw_json, load_model(tiny_model(), DType::kF32).hf.raw_json);
}

// The mean over the batch's trained tokens, whatever the micro-batches.
TEST_F(SftTest, MicroBatchesChangeNoReportedLoss) {
  train("whole", 2);
  train("split", 2, {"actor.max_tokens_per_micro_batch=15"});
  const auto a = metrics("whole"), b = metrics("split");
  EXPECT_NEAR(a[0]["sft/loss"].get<double>(), b[0]["sft/loss"].get<double>(), 1e-12);
  EXPECT_NEAR(a[0]["actor/grad_norm"].get<double>(), b[0]["actor/grad_norm"].get<double>(), 1e-5);
  EXPECT_NEAR(a[1]["sft/loss"].get<double>(), b[1]["sft/loss"].get<double>(), 1e-5);
}

TEST_F(SftTest, MessagesTrainEndToEnd) {
  dir_.write("chat.jsonl", std::string(kTwoTurns) + kTwoTurns);
  train("chat", 2,
        {"model.path=" + chat_model(kMarked), "data.train_files=" + dir_.file("chat.jsonl"), "data.train_batch_size=2"});
  EXPECT_EQ(metrics("chat").size(), 2u);
  EXPECT_TRUE(fs::exists(run_file("chat", "checkpoints/global_step_2/huggingface/chat_template.jinja")));
}

TEST_F(SftTest, ResumedRunEqualsOneThatNeverStopped) {
  train("whole", 6);
  train("parts", 2);
  train("parts", 6);
  expect_same_run("whole", "parts", 6);
}

TEST_F(SftTest, StopSavesTheStepBeforeAndResumesBitForBit) {
  train("whole", 3);
  train("parts", 1);
  request_stop(SIGTERM);
  const std::string text = message_of<StoppedError>([&] { train("parts", 3); });
  EXPECT_NE(text.find("SIGTERM in step 2"), std::string::npos) << text;
  EXPECT_EQ(read_bytes(run_file("parts", "checkpoints/latest")), "global_step_1\n");
  clear_stop_request();
  train("parts", 3);
  expect_same_run("whole", "parts", 3);
}

TEST_F(SftTest, AuxiliaryLossIsReportedAndChangesTheRouter) {
  train("without", 1);
  train("with", 1, {"actor.router_aux_loss_coef=0.1"});
  // Two choices of four experts: an even load gives 2.
  EXPECT_GE(metrics("with")[0]["sft/router_aux_loss"].get<double>(), 0.2 - 1e-6);
  EXPECT_EQ(metrics("with")[0]["sft/loss"], metrics("without")[0]["sft/loss"]);
  EXPECT_NE(read_bytes(state_file("with", 1, "master.safetensors")), read_bytes(state_file("without", 1, "master.safetensors")));
  EXPECT_THROW(sft_recipe("both", {"actor.router_aux_loss_coef=0.1", "actor.recompute=true"}), UsageError);
}

TEST_F(SftTest, RecomputeChangesNoBit) {
  train("kept", 2);
  train("again", 2, {"actor.recompute=true"});
  expect_same_run("kept", "again", 2);
}

// The first steps of the shipped model's recipe, with fewer rows a step.
class ShippedRecipe : public SftTest {
 protected:
  std::string masters(const std::string& run, int rows, int threads, kernels::Target target, int steps = 20) {
    const OneTarget forced(target);
    const Recipe r =
        load_recipe(std::string(WEFT_SOURCE_DIR) + "/recipes/tiny_moe_sft.toml",
                    {"model.path=" + std::string(WEFT_SOURCE_DIR) + "/models/tiny-moe",
                     "data.train_files=" + dir_.file("train.jsonl"), "data.val_files=[]",
                     fmt::format("data.train_batch_size={}", rows), fmt::format("trainer.total_training_steps={}", steps),
                     fmt::format("actor.optim.lr_warmup_steps={}", std::min(20, steps)), "trainer.runs_dir=" + dir_.file("runs"),
                     "trainer.run_name=" + run, fmt::format("trainer.threads={}", threads)},
                    RecipeUse::kSft);
    const OneThreadCount count(threads);
    SftTrainer(r, registry_).run();
    return read_bytes(state_file(run, steps, "master.safetensors"));
  }
};

TEST_F(ShippedRecipe, IsTheSameWithOneAndTwoThreadsAndOnEachVectorTarget) {
  const auto targets = kernels::available_targets();
  const std::string first = masters("first", 6, 1, targets.back());
  EXPECT_TRUE(first == masters("two", 6, 2, targets.back())) << "two threads";
  for (kernels::Target t : targets)
    if (t != kernels::Target::kPortable && t != targets.back()) {
      EXPECT_TRUE(first == masters(std::string(kernels::target_name(t)), 6, 1, t)) << kernels::target_name(t);
    }
}

// Fewer steps: scalar loops are slow, and the warm-up must fit.
TEST_F(ShippedRecipe, IsTheSameOnThePortableTarget) {
  EXPECT_TRUE(masters("best", 1, 1, kernels::available_targets().back(), 8) ==
              masters("portable", 1, 1, kernels::Target::kPortable, 8));
}

}  // namespace
}  // namespace weft
