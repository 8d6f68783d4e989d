#include "weft/text/regex.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "weft/base/error.h"

namespace weft::tok {
namespace {

std::vector<std::string> found(const std::string& pattern, const std::string& text) {
  std::vector<std::string> out;
  for (const auto& [begin, end] : Regex(pattern).matches(text)) {
    out.push_back(text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  }
  return out;
}

using Strings = std::vector<std::string>;

TEST(Regex, WhiteSpaceIsNotPcre2s) {
  const std::string text = "a\u180Eb\u0085c\u00A0d\u3000e\x1C";
  EXPECT_EQ(found(R"(\s)", text), (Strings{"\u0085", "\u00A0", "\u3000"}));
  EXPECT_EQ(found(R"([\s])", text), (Strings{"\u0085", "\u00A0", "\u3000"}));
  EXPECT_EQ(found(R"(\S+)", text), (Strings{"a\u180Eb", "c", "d", "e\x1C"}));
  EXPECT_EQ(found(R"([\S]+)", text), (Strings{"a\u180Eb", "c", "d", "e\x1C"}));
  EXPECT_EQ(found(R"([^\S]+)", text), (Strings{"\u0085", "\u00A0", "\u3000"}));
  EXPECT_EQ(found(R"([^\s]+)", text), (Strings{"a\u180Eb", "c", "d", "e\x1C"}));
}

TEST(Regex, WordsHoldMarks) {
  EXPECT_EQ(found(R"(\w+)", "e\u0301a-b_9 \u00BD"), (Strings{"e\u0301a", "b_9"}));
  EXPECT_EQ(found(R"(\W+)", "ab- c"), (Strings{"- "}));
}

TEST(Regex, IntervalPlusRepeats) {
  // Possessive, {1,3}+ would leave no digit for the last \d.
  EXPECT_EQ(found(R"(\d{1,3}+\d)", "12345"), (Strings{"12345"}));
  EXPECT_EQ(found(R"((?:ab){1,2}+)", "ababab"), (Strings{"ababab"}));
  EXPECT_EQ(found(R"([0-9]{2}+)", "12345"), (Strings{"1234"}));
  EXPECT_EQ(found(R"(a++b)", "aab"), (Strings{"aab"}));
  EXPECT_EQ(translate_pattern(R"(\p{L}{1,3}+x)"), R"((?:\p{L}{1,3})+x)");
  EXPECT_EQ(translate_pattern(R"(\p{N}{1,3}| ?)"), R"(\p{N}{1,3}| ?)");
}

TEST(Regex, LineEndsAndCase) {
  EXPECT_EQ(found("a$", "a\na"), (Strings{"a", "a"}));
  EXPECT_EQ(found("(?i:'s)", "'S'\u017F"), (Strings{"'S", "'\u017F"}));
  EXPECT_EQ(found("x*", "axx"), (Strings{"", "xx", ""}));
}

TEST(Regex, RefusesWhatItWouldMisread) {
  for (const char* pattern :
       {R"([a[b]])", R"([a&&b])", R"([\W])", R"(\bx)", R"(\Qa\E)", "(", "[a", "a{2,1}", R"(\p{Nope})", R"(\)", "(?<=a*)b"}) {
    EXPECT_THROW(Regex{pattern}, ValueError) << pattern;
  }
  EXPECT_THROW(Regex(std::string(100000, 'a')), ValueError);
  EXPECT_THROW(Regex(std::string(10000, '(') + std::string(10000, ')')), ValueError);
  EXPECT_EQ(found("[[:digit:]]+", "a12"), (Strings{"12"}));
}

TEST(Regex, CatastropheEndsInAnError) { EXPECT_THROW(Regex("(a+)+$").matches(std::string(40, 'a') + "b"), ValueError); }

// `(?:\s+)$` has the meaning of `\s+$` and goes the usual way.
TEST(Regex, TrailingSpaceEqualsTheEngine) {
  std::mt19937 random(3);
  const Strings alphabet{" ", "\n", "\r", "\u3000", "a", "漢", " "};
  const Regex fast(R"(\s+$)");
  const Regex slow(R"((?:\s+)$)");
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (size_t i = random() % 12; i > 0; --i) text += alphabet[random() % alphabet.size()];
    ASSERT_EQ(fast.matches(text), slow.matches(text)) << testing::PrintToString(text);
  }
}

TEST(Regex, TrailingSpaceIsLinear) {
  const std::string text = std::string(1 << 20, ' ') + "a";
  EXPECT_TRUE(Regex(R"(\s+$)").matches(text).empty());
}

TEST(Regex, LongTextsNeedNoStack) {
  const std::string text(1 << 17, 'a');
  EXPECT_EQ(Regex(R"((?:a|b)+)").matches(text), (std::vector<Span>{{0, 1 << 17}}));
}

TEST(Literal, FindsWithoutOverlap) {
  EXPECT_EQ(find_literal("aaaa", "aa"), (std::vector<Span>{{0, 2}, {2, 4}}));
  EXPECT_TRUE(find_literal("abc", "d").empty());
  EXPECT_TRUE(find_literal("", "d").empty());
}

}  // namespace
}  // namespace weft::tok
