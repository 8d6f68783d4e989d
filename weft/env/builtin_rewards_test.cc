#include "weft/env/builtin_rewards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "weft/base/error.h"
#include "weft/env/reward_registry.h"

namespace weft {
namespace {

using testing::HasSubstr;

RewardRequest request(const std::string& completion, const std::string& ground_truth_json = "") {
  RewardRequest r;
  r.completion = completion;
  if (!ground_truth_json.empty()) r.ground_truth_json = ground_truth_json;
  r.file = "d.jsonl";
  r.row_number = 12;
  r.sample_index = 3;
  return r;
}

double score(const std::string& spec, const RewardRequest& r) {
  const auto reward = RewardRegistry().make(spec, {});
  const auto values = reward->score(std::span(&r, 1));
  EXPECT_EQ(values.size(), 1u);
  EXPECT_TRUE(values[0].applicable);
  return values[0].value;
}

std::string message(const std::string& spec, const RewardRequest& r = request("")) {
  try {
    score(spec, r);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(BuiltinRewards, ExactMatch) {
  EXPECT_EQ(score("exact_match", request(" Paris\n", R"("Paris")")), 1);
  EXPECT_EQ(score("exact_match", request("paris", R"("Paris")")), 0);
  EXPECT_EQ(score("exact_match", request("4", "4")), 1);
  EXPECT_EQ(score("exact_match", request("b", R"(["a", "b"])")), 1);
  EXPECT_EQ(score("exact_match", request("", R"("")")), 1);
}

TEST(BuiltinRewards, Contains) {
  EXPECT_EQ(score("contains:a:b", request("xa:by")), 1);
  EXPECT_EQ(score("contains:zz", request("xa:by")), 0);
  EXPECT_EQ(score("contains", request("It is Paris.", R"("Paris")")), 1);
  EXPECT_EQ(score("contains", request("It is Rome.", R"("Paris")")), 0);
}

TEST(BuiltinRewards, Regex) {
  EXPECT_EQ(score(R"(regex:^\d+:$)", request("123:")), 1);
  EXPECT_EQ(score(R"(regex:^\d+:$)", request("x123:")), 0);
  EXPECT_EQ(score(R"(regex:\p{Lu}é)", request("xÉé")), 1);
  EXPECT_EQ(score("regex:b", request(std::string("\xff") + "b")), 1);
  const char* spec = R"(regex:answer is (?<answer>\w+))";
  EXPECT_EQ(score(spec, request("answer is 3, no: answer is 4", "4")), 1);
  EXPECT_EQ(score(spec, request("answer is 4, no: answer is 3", "4")), 0);
  EXPECT_EQ(score(spec, request("who knows", "4")), 0);
  EXPECT_EQ(score("regex:(?<answer>x*)", request("xé", R"("")")), 1);
}

TEST(BuiltinRewards, LastNumber) {
  EXPECT_EQ(score("last_number", request("2 + 2 = 4.", R"("4")")), 1);
  EXPECT_EQ(score("last_number", request("2 + 2 = 5", R"("4")")), 0);
  EXPECT_EQ(score("last_number", request("no idea", "4")), 0);
  EXPECT_EQ(score("last_number", request("\\boxed{1{,}000 = 1,000}", R"("so it is\n#### 1000")")), 1);
  EXPECT_EQ(score("last_number", request("0.5", "[1, 0.5]")), 1);
  EXPECT_EQ(score("last_number", request("1/3", R"("\\frac{2}{6}")")), 1);
}

TEST(BuiltinRewards, FormatTags) {
  for (const char* spec : {"format", "format:think,answer", "format:<think>..</think><answer>..</answer>",
                           "format:<think>..</think>\n<answer>..</answer>"}) {
    EXPECT_EQ(score(spec, request("<think>a\nb</think>\n <answer>c</answer>\n")), 1) << spec;
    EXPECT_EQ(score(spec, request("<think></think><answer></answer>")), 1) << spec;
    EXPECT_EQ(score(spec, request("<think>a</think><answer>c</answer> more")), 0) << spec;
    EXPECT_EQ(score(spec, request("so <think>a</think><answer>c</answer>")), 0) << spec;
    EXPECT_EQ(score(spec, request("<answer>c</answer><think>a</think>")), 0) << spec;
    EXPECT_EQ(score(spec, request("<think>a</think><answer>c</answer><answer>d</answer>")), 0) << spec;
    EXPECT_EQ(score(spec, request("<think>a<answer>b</think>c</answer>")), 0) << spec;
    EXPECT_EQ(score(spec, request("<think>a</think><answer>c")), 0) << spec;
    EXPECT_EQ(score(spec, request("")), 0) << spec;
  }
  RewardRequest opened = request("a</think><answer>c</answer>");
  EXPECT_EQ(score("format", opened), 0);
  opened.prompt = "<|assistant|><think>\n";
  EXPECT_EQ(score("format", opened), 1);
}

TEST(BuiltinRewards, FormatRegexIsWhole) {
  EXPECT_EQ(score("format:regex:a.*b", request("a\n\nb")), 1);
  EXPECT_EQ(score("format:regex:a.*b", request("a\n\nbc")), 0);
  EXPECT_EQ(score("format:regex:a|ab", request("ab")), 1);
}

TEST(BuiltinRewards, Length) {
  const auto of = [](const std::string& spec, size_t tokens) {
    RewardRequest r = request("x");
    r.completion_ids.assign(tokens, 1);
    return score(spec, r);
  };
  EXPECT_EQ(of("length:target=10", 10), 0);
  EXPECT_FALSE(std::signbit(of("length:target=10", 10)));
  EXPECT_EQ(of("length:target=10", 2), 0);
  EXPECT_DOUBLE_EQ(of("length:target=10", 15), -0.5);
  EXPECT_EQ(of("length:target=10", 500), -1);
  EXPECT_DOUBLE_EQ(of("length:target=10, penalty=0.01, shorter=0.02", 6), -0.08);
  EXPECT_DOUBLE_EQ(of("length:target=10,penalty=0.5,floor=-3", 14), -2);
}

TEST(BuiltinRewards, MissingGroundTruthNamesRowAndKey) {
  for (const char* spec : {"exact_match", "contains", "last_number", "regex:(?<answer>a)"})
    for (const char* none : {"", "null", "[]"})
      EXPECT_THAT(message(spec, request("x", none)),
                  testing::AllOf(HasSubstr("d.jsonl: row 12, sample 3"), HasSubstr("reward.ground_truth_key")))
          << spec;
  EXPECT_THAT(message("last_number", request("4", R"("four")")),
              testing::AllOf(HasSubstr("d.jsonl: row 12, sample 3"), HasSubstr("'four' holds no number")));
}

TEST(BuiltinRewards, BadSpecsSayWhatFits) {
  EXPECT_THAT(message("exact_match:x"), HasSubstr("takes nothing"));
  EXPECT_THAT(message("last_number:x"), HasSubstr("takes nothing"));
  EXPECT_THAT(message("regex"), HasSubstr("regex:PATTERN"));
  EXPECT_THAT(message("regex:(a"), HasSubstr("at byte 2"));
  for (const char* spec : {"format:a b", "format:think,", "format:a,a", "format:<think>", "format:<think>..</answer>",
                           "format:<a>..</a>b", "format:<a>..</a><a>..</a>", "format:,a"})
    EXPECT_THAT(message(spec), HasSubstr("format:think,answer")) << spec;
  EXPECT_THAT(message("length"), HasSubstr("target=N"));
  EXPECT_THAT(message("length:goal=3"), HasSubstr("'goal=3'"));
  EXPECT_THAT(message("length:target=abc"), HasSubstr("not a number"));
  EXPECT_THAT(message("length:target=0"), HasSubstr("N >= 1"));
  EXPECT_THAT(message("length:target=5,penalty=-1"), HasSubstr("must not be negative"));
  EXPECT_THAT(message("length:target=5,floor=1"), HasSubstr("floor"));
  EXPECT_THAT(message("last_numbr"), HasSubstr("last_number"));
}

TEST(BuiltinRewards, PatternThatExplodesNamesTheRow) {
  EXPECT_THAT(message("regex:^(a|aa|b?)*c$", request(std::string(4000, 'a') + "dc")),
              testing::AllOf(HasSubstr("row 12"), HasSubstr("gave up")));
}

TEST(RewardRegistry, OwnRewardsWorkLikeBuiltInOnes) {
  RewardRegistry registry;
  registry.add("mine", make_contains);
  const RewardRequest r = request("abc");
  EXPECT_EQ(registry.make("mine:b", {})->score(std::span(&r, 1))[0].value, 1);
  EXPECT_THROW(registry.add("mine", make_contains), UsageError);
  EXPECT_THROW(registry.add("a:b", make_contains), UsageError);
  EXPECT_THAT(registry.names(),
              testing::ElementsAre("contains", "exact_match", "format", "last_number", "length", "mine", "regex"));
}

}  // namespace
}  // namespace weft
