#include "weft/env/reward_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "weft/base/error.h"
#include "weft/env/test_support.h"

namespace weft {
namespace {

using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
const RewardValue kNone{0, false, {}};

class Fixed final : public RewardFunction {
 public:
  Fixed(std::string name, std::vector<RewardValue> values) : name_(std::move(name)), values_(std::move(values)) {}
  std::string name() const override { return name_; }
  std::vector<RewardValue> score(std::span<const RewardRequest>) override { return values_; }

 private:
  std::string name_;
  std::vector<RewardValue> values_;
};

RewardSet::Entry entry(std::string name, double weight, std::vector<RewardValue> values) {
  return {std::make_unique<Fixed>(std::move(name), std::move(values)), weight};
}

template <typename... Entries>
RewardSet set_of(OnNan on_nan, Entries... entries) {
  std::vector<RewardSet::Entry> all;
  (all.push_back(std::move(entries)), ...);
  return RewardSet(std::move(all), on_nan);
}

std::vector<RewardRequest> requests(int64_t n) {
  std::vector<RewardRequest> all(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    all[static_cast<size_t>(i)].file = "d.jsonl";
    all[static_cast<size_t>(i)].row_number = 10 + i;
  }
  return all;
}

TEST(RewardSet, SumsWeightsOverThoseThatApply) {
  auto set = set_of(OnNan::kStop, entry("a", 1, {{1, true, {}}, {1, true, {}}, kNone}),
                    entry("b", -0.5, {{2, true, {{"acc", 1}}}, kNone, kNone}));
  const auto result = set.score(requests(3));
  EXPECT_EQ(result[0].value, 0);
  EXPECT_TRUE(result[0].valid);
  EXPECT_EQ(result[0].parts[1].value, 2);
  EXPECT_EQ(result[0].parts[1].extra.at("acc"), 1);
  EXPECT_EQ(result[1].value, 1);
  EXPECT_FALSE(result[1].parts[1].applicable);
  EXPECT_FALSE(result[2].valid);
  EXPECT_EQ(result[2].reason, "no reward applies");
  EXPECT_EQ(result[2].parts.size(), 2u);
}

TEST(RewardSet, NotFiniteStopsNamingFunctionAndRow) {
  for (const double bad : {kNan, kInf, -kInf}) {
    auto set =
        set_of(OnNan::kStop, entry("a", 1, {{1, true, {}}, {1, true, {}}}), entry("b", 0, {{1, true, {}}, {bad, true, {}}}));
    EXPECT_THAT(message_of([&] { set.score(requests(2)); }),
                testing::AllOf(HasSubstr("d.jsonl: row 11, sample 0"), HasSubstr("'b'"), HasSubstr("reward.on_nan")));
  }
  auto extra = set_of(OnNan::kStop, entry("a", 1, {{1, true, {{"acc", kNan}}}}));
  EXPECT_THAT(message_of([&] { extra.score(requests(1)); }), HasSubstr("acc = nan"));
  auto sum = set_of(OnNan::kStop, entry("a", 1e300, {{1e300, true, {}}}));
  EXPECT_THAT(message_of([&] { sum.score(requests(1)); }), HasSubstr("weighted sum"));
}

TEST(RewardSet, NotFiniteIsDroppedWhenAskedFor) {
  auto set = set_of(OnNan::kDrop, entry("a", 1, {{kNan, true, {{"acc", kInf}, {"len", 3}}}, {2, true, {}}}),
                    entry("b", 1, {{1, true, {}}, {1, true, {}}}));
  const auto result = set.score(requests(2));
  EXPECT_FALSE(result[0].valid);
  EXPECT_EQ(result[0].value, 0);
  EXPECT_EQ(result[0].reason, "reward 'a' gave nan");
  EXPECT_FALSE(result[0].parts[0].applicable);
  EXPECT_EQ(result[0].parts[0].extra.size(), 1u);
  EXPECT_TRUE(result[0].parts[1].applicable);
  EXPECT_TRUE(result[1].valid);
  EXPECT_EQ(result[1].value, 3);
}

TEST(RewardSet, NanOfOneThatDoesNotApplyIsNothing) {
  auto set = set_of(OnNan::kStop, entry("a", 1, {{kNan, false, {}}}), entry("b", 1, {{1, true, {}}}));
  EXPECT_EQ(set.score(requests(1))[0].value, 1);
}

TEST(RewardSet, WrongCountNamesTheFunction) {
  auto set = set_of(OnNan::kDrop, entry("short", 1, {{1, true, {}}}));
  EXPECT_THAT(message_of([&] { set.score(requests(2)); }),
              testing::AllOf(HasSubstr("'short' gave 1 values for 2"), HasSubstr("row 10")));
}

TEST(RewardSet, NamesDiffer) {
  EXPECT_THAT(
      set_of(OnNan::kStop, entry("regex", 1, {}), entry("regex", 1, {}), entry("x", 1, {}), entry("regex", 1, {})).names(),
      ElementsAre("regex", "regex_2", "x", "regex_3"));
}

TEST(RewardSet, BadSetsAreUsageErrors) {
  EXPECT_THROW(set_of(OnNan::kStop), UsageError);
  EXPECT_THROW(set_of(OnNan::kStop, entry("a", kNan, {})), UsageError);
}

TEST(RewardSet, NothingToScore) { EXPECT_TRUE(set_of(OnNan::kStop, entry("a", 1, {})).score({}).empty()); }

}  // namespace
}  // namespace weft
