#include "weft/env/number.h"

#include <gtest/gtest.h>

#include <string>

#include "weft/base/random.h"

namespace weft {
namespace {

// Numerator/denominator*10^exponent as text, to see what was read.
std::string show(const std::optional<Number>& n) {
  if (!n) return "none";
  std::string text = (n->negative ? "-" : "") + n->digits;
  if (n->exponent != 0) text += "e" + std::to_string(n->exponent);
  if (n->denominator != "1") text += "/" + n->denominator;
  return text;
}

TEST(Number, LastNumberOfText) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "none"},
      {"no digits", "none"},
      {"1 then 2 then 37.", "37"},
      {"It costs $1,234,567.50 today", "12345675e-1"},
      {"5-3", "3"},
      {"x-3", "3"},
      {"(2)-3", "3"},
      {"is -3", "-3"},
      {"-3", "-3"},
      {"(-3)", "-3"},
      {"$-3", "-3"},
      {"-$3", "-3"},
      {"-\\$3", "-3"},
      {"5 - 3", "3"},
      {"--3", "3"},
      {"\xe2\x88\x92"
       "12",
       "-12"},
      {"4\xe2\x88\x92"
       "12",
       "12"},
      {"50%", "5e1"},
      {"12,34", "34"},
      {"1,2345", "2345"},
      {"1234,567", "567"},
      {"(1,234)", "1234"},
      {".5", "5e-1"},
      {"-.5", "-5e-1"},
      {"1.2.3", "3"},
      {"0.050", "5e-2"},
      {"007", "7"},
      {"-0", "0"},
      {"1e3", "1e3"},
      {"1.5E-3", "15e-4"},
      {"1e3x", "3"},
      {"2e", "2"},
      {"3/4", "3/4"},
      {"-3/4 of it", "-3/4"},
      {"3/0", "0"},
      {"1/2/2024", "2024"},
      {"3 / 4", "4"},
      {"\\frac{1}{2}", "1/2"},
      {"-\\dfrac{10}{4}", "-1e1/4"},
      {"\\frac{-1}{3}", "-1/3"},
      {"\\frac{x}{3}", "3"},
      {"\\frac{1}{2", "2"},
  };
  for (const auto& [text, wanted] : cases) EXPECT_EQ(show(last_number(text)), wanted) << text;
}

TEST(Number, AnswerPrefersTheStatedOne) {
  const std::pair<const char*, const char*> cases[] = {
      {"so 3 + 4 = 7\n#### 7\nChecked 2 times", "7"},
      {"#### 1,000\n#### 2,000 apples and 3", "2e3"},
      {"#### none\n5", "none"},
      {"\\boxed{42} after 7 tries", "42"},
      {"\\boxed{1} and \\boxed{2}", "2"},
      {"\\boxed{\\text{about } {7{,}} 8}", "8"},
      {"\\boxed{\\frac{3}{4}}", "3/4"},
      {"\\boxed{\\frac{\\sqrt{2}}{5}} 9", "5"},
      {"\\boxed {6} 9", "6"},
      {"\\boxed{x} 9", "none"},
      {"\\boxed{6", "6"},
      {"\\boxed{5} \\boxed{6", "5"},
      {"\\fbox{3}", "3"},
      {"f{ \\boxed{3} 4", "3"},
      {"\\boxed{3 \\} 4} 5", "4"},
      {"#### 3 \\boxed{4}", "4"},
      {"\\boxed{4}\n#### 3", "3"},
      {"####", "none"},
      {"boxed{4} 5", "5"},
  };
  for (const auto& [text, wanted] : cases) EXPECT_EQ(show(answer_number(text)), wanted) << text;
  EXPECT_EQ(last_boxed("\\boxed{a{b}{c{d}}e}"), "a{b}{c{d}}e");
  EXPECT_EQ(last_boxed("\\boxed{}"), "");
  EXPECT_EQ(last_boxed("\\boxed"), std::nullopt);
}

TEST(Number, EqualityIsExact) {
  const auto equal = [](const char* a, const char* b) { return *last_number(a) == *last_number(b); };
  EXPECT_TRUE(equal("0.1", "1/10"));
  EXPECT_TRUE(equal("2/4", "0.50"));
  EXPECT_TRUE(equal("1,000.0", "1000"));
  EXPECT_TRUE(equal("1e3", "1000"));
  EXPECT_TRUE(equal("-6/3", "-2"));
  EXPECT_TRUE(equal("0", "-0.00"));
  EXPECT_TRUE(equal("0/7", "0"));
  EXPECT_TRUE(equal("100/3", "\\frac{1000}{30}"));
  EXPECT_FALSE(equal("9007199254740993", "9007199254740992"));
  EXPECT_FALSE(equal("0.3333333333333333", "1/3"));
  EXPECT_FALSE(equal("1e999999999", "1e999999998"));
  EXPECT_FALSE(equal("3", "-3"));
  EXPECT_FALSE(equal("0", "1"));
}

TEST(Number, EqualityAgreesWithIntegerArithmetic) {
  const CounterRng rng(5);
  for (uint64_t i = 0; i < 2000; ++i) {
    const uint64_t a = rng.below(4 * i, 60), b = 1 + rng.below(4 * i + 1, 60), c = rng.below(4 * i + 2, 60),
                   d = 1 + rng.below(4 * i + 3, 60);
    const auto text = [](uint64_t x, uint64_t y) { return std::to_string(x) + "/" + std::to_string(y); };
    ASSERT_EQ(*last_number(text(a, b)) == *last_number(text(c, d)), a * d == b * c) << text(a, b) << " " << text(c, d);
  }
}

TEST(Number, HugeTextIsNotANumberAndNotSlow) {
  EXPECT_EQ(last_number(std::string(1000000, '9')), std::nullopt);
  EXPECT_EQ(show(last_number("7 " + std::string(5000, '9'))), "7");
  std::string boxes;
  for (int i = 0; i < 20000; ++i) boxes += "\\boxed{";
  EXPECT_EQ(last_boxed(boxes), std::nullopt);
}

}  // namespace
}  // namespace weft
