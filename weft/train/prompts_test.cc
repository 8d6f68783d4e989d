#include "weft/train/prompts.h"

#include "weft/train/test_runs.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

class PromptsTest : public RunTest {
 protected:
  PromptsTest() : tokenizer_(Tokenizer::load(tiny_model())) {}

  std::unique_ptr<PromptSource> source(const std::string& rows, const std::vector<std::string>& more = {}) {
    dir_.write("rows.jsonl", rows);
    recipe_ = recipe("unused", more);
    return std::make_unique<PromptSource>(std::vector<std::string>{dir_.file("rows.jsonl")}, recipe_, tokenizer_, -1);
  }
  // Loads a tokenizer with a chat template made of the 17 characters that it knows.
  void use_chat_template() {
    const std::string dir = dir_.file("chat");
    fs::copy(tiny_model(), dir);
    std::ofstream(dir + "/chat_template.jinja")
        << "{% if tools %}{{ '9' }}{% endif %}{% for m in messages %}{{ '+' + m['content'] }}{% endfor %}"
           "{% if add_generation_prompt %}{{ '-' }}{% endif %}{% if extra %}{{ extra }}{% endif %}";
    tokenizer_ = Tokenizer::load(dir);
  }

  Tokenizer tokenizer_;
  Recipe recipe_;
};

using Ids = std::vector<int32_t>;

TEST_F(PromptsTest, StringsGetTheTokenizersSpecialTokens) {
  const Prompt p = source("{\"prompt\": \"1+2=\", \"answer\": \"3\", \"data_source\": \"add\"}\n")->prompt(0);
  EXPECT_EQ(p.ids, (Ids{1, 4, 13, 5, 15}));
  EXPECT_EQ(p.text, "1+2=");
  EXPECT_EQ(p.ground_truth_json, "\"3\"");
  EXPECT_EQ(p.data_source, "add");
  EXPECT_FALSE(p.messages_json);
}

TEST_F(PromptsTest, IdsAreTakenAsTheyAre) {
  const Prompt p = source("{\"prompt_ids\": [4, 13, 0], \"prompt\": \"ignored\"}\n")->prompt(0);
  EXPECT_EQ(p.ids, (Ids{4, 13, 0}));
  EXPECT_EQ(p.text, "1+<pad>");
}

TEST_F(PromptsTest, MessagesGoThroughTheTemplateAndNothingIsAdded) {
  use_chat_template();
  const auto s = source(
      "{\"prompt\": [{\"role\": \"user\", \"content\": \"12\"}]}\n{\"prompt\": [{\"content\": \"3\"}], \"tools\": [{\"a\": "
      "1}]}\n",
      {"data.chat_template_kwargs={extra = \"7\"}"});
  EXPECT_EQ(s->prompt(0).text, "+12-7");
  EXPECT_EQ(s->prompt(0).ids, (Ids{13, 4, 5, 14, 10}));
  EXPECT_EQ(s->prompt(0).messages_json, "[{\"role\":\"user\",\"content\":\"12\"}]");
  EXPECT_EQ(s->prompt(1).text, "9+3-7");
}

TEST_F(PromptsTest, OtherKeysCanHoldPromptAndGroundTruth) {
  const auto s =
      source("{\"question\": \"1+2=\", \"gold\": [3, 4]}\n", {"data.prompt_key=question", "reward.ground_truth_key=gold"});
  EXPECT_EQ(s->prompt(0).text, "1+2=");
  EXPECT_EQ(s->ground_truth_key(), "gold");
  EXPECT_EQ(*s->prompt(0).ground_truth_json, "[3,4]");
}

TEST_F(PromptsTest, OverlongPromptsAreAnErrorOrLeftOut) {
  const std::string rows = "{\"prompt\": \"1+2=\"}\n{\"prompt\": \"11111111111111+2=\"}\n{\"prompt\": \"3+4=\"}\n";
  const std::string text = message_of<ValueError>([&] { source(rows); });
  EXPECT_NE(text.find("rows.jsonl: line 2: the prompt has 18 tokens, data.max_prompt_length is 16"), std::string::npos) << text;
  const auto s = source(rows, {"data.filter_overlong_prompts=true"});
  EXPECT_EQ(s->rows(), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(s->num_filtered(), 1);
  EXPECT_NE(message_of<ValueError>([&] {
              source("{\"prompt\": \"11111111111111+2=\"}\n", {"data.filter_overlong_prompts=true"});
            }).find("no prompt is left"),
            std::string::npos);
}

TEST_F(PromptsTest, MalformedRowsAreErrorsThatNameThem) {
  const struct {
    const char *row, *text;
  } cases[] = {{"{\"question\": \"1\"}", "neither 'prompt' nor 'prompt_ids'"},
               {"{\"prompt\": 5}", "must be a string or a list"},
               {"{\"prompt\": null}", "must be a string or a list"},
               {"{\"prompt_ids\": [1, 17]}", "17 is not a token id below 17"},
               {"{\"prompt_ids\": [-1]}", "-1 is not a token id"},
               {"{\"prompt_ids\": [1.5]}", "1.5"},
               {"{\"prompt_ids\": [99999999999999999999]}", "not a token id"},
               {"{\"prompt_ids\": \"1\"}", "must be a list"},
               {"{\"prompt_ids\": []}", "no tokens"},
               {"{\"prompt\": [{\"role\": \"user\", \"content\": \"1\"}]}", "no chat template"}};
  for (const auto& c : cases) {
    const std::string text = message_of<Error>([&] { source(std::string("{\"prompt\": \"1\"}\n\n") + c.row + "\n"); });
    EXPECT_NE(text.find(c.text), std::string::npos) << c.row << ": " << text;
    if (std::string(c.text) != "no chat template") {
      EXPECT_NE(text.find("rows.jsonl: line 3"), std::string::npos) << c.row << ": " << text;
    }
  }
  use_chat_template();
  const std::string text = message_of<Error>([&] { source("{\"prompt\": [{\"role\": \"user\"}]}\n"); });
  EXPECT_NE(text.find("rows.jsonl: line 1"), std::string::npos) << text;
}

TEST_F(PromptsTest, RewardsAreAskedWithTheWholeRow) {
  const auto s = source("{\"prompt\": \"1+2=\", \"answer\": \"3\", \"level\": 7}\n");
  const RewardRequest r = s->request(s->prompt(0), 4, "3", {6, 2});
  EXPECT_EQ(r.prompt, "1+2=");
  EXPECT_EQ(r.completion, "3");
  EXPECT_EQ(r.prompt_ids, (std::vector<int64_t>{1, 4, 13, 5, 15}));
  EXPECT_EQ(r.completion_ids, (std::vector<int64_t>{6, 2}));
  EXPECT_EQ(r.ground_truth_json, "\"3\"");
  EXPECT_EQ(nlohmann::json::parse(r.row_json)["level"], 7);
  EXPECT_EQ(r.sample_index, 4);
  EXPECT_NE(where(r).find("rows.jsonl"), std::string::npos);
}

}  // namespace
}  // namespace weft
