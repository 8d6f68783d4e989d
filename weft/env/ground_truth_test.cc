#include "weft/env/ground_truth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "weft/base/error.h"

namespace weft {
namespace {

std::string message(const std::function<void()>& act) {
  try {
    act();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TEST(GroundTruth, AutoTakesTheOneThatIsThere) {
  const auto key_of = [](const char* row) {
    const auto found = find_ground_truth(row, "auto", "f: row 1");
    return found ? found->key + "=" + found->json : "none";
  };
  EXPECT_EQ(key_of(R"({"reward_model": {"style": "rule", "ground_truth": "42"}})"), "reward_model.ground_truth=\"42\"");
  EXPECT_EQ(key_of(R"({"solution": [1, 2.5]})"), "solution=[1,2.5]");
  EXPECT_EQ(key_of(R"({"answer": "a\nb"})"), R"(answer="a\nb")");
  EXPECT_EQ(key_of(R"({"ground_truth": 3, "answer": null})"), "ground_truth=3");
  EXPECT_EQ(key_of(R"({"reward_model": "x"})"), "none");
  EXPECT_EQ(key_of(R"({"prompt": "x"})"), "none");
}

TEST(GroundTruth, TwoPresentIsAnErrorThatListsThem) {
  EXPECT_EQ(message([] { find_ground_truth(R"({"answer": 1, "solution": 2})", "auto", "d.jsonl: row 7"); }),
            "d.jsonl: row 7: solution, answer could each be the ground truth; choose one with reward.ground_truth_key");
}

TEST(GroundTruth, NamedKeyIsAPath) {
  EXPECT_EQ(find_ground_truth(R"({"a": {"b": {"c": true}}, "answer": 1})", "a.b.c", "r")->json, "true");
  EXPECT_EQ(find_ground_truth(R"({"a.b": 5, "a": {"b": 6}})", "a.b", "r")->json, "5");
  EXPECT_THAT(message([] { find_ground_truth(R"({"a": 1, "b": 2})", "a.c", "d.jsonl: row 7"); }),
              testing::AllOf(testing::HasSubstr("d.jsonl: row 7"), testing::HasSubstr("\"a.c\""), testing::HasSubstr("a, b")));
  EXPECT_THAT(message([] { find_ground_truth(R"({"a": null})", "a", "r"); }), testing::HasSubstr("no value"));
  EXPECT_THAT(message([] { find_ground_truth(R"({"a": {"": 1}})", "a..", "r"); }), testing::HasSubstr("no value"));
}

TEST(GroundTruth, BadRowsAreErrors) {
  EXPECT_THAT(message([] { find_ground_truth("{", "auto", "d: row 3"); }), testing::HasSubstr("d: row 3: not JSON"));
  EXPECT_THAT(message([] { find_ground_truth("[1]", "auto", "d: row 3"); }), testing::HasSubstr("must be a JSON object"));
}

}  // namespace
}  // namespace weft
