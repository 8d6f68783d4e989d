#include "weft/text/unicode.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace weft::tok {
namespace {

std::string utf8(std::initializer_list<char32_t> points) {
  std::string out;
  for (const char32_t c : points) append_utf8(c, out);
  return out;
}

TEST(Utf8, RoundTripsEveryCodePoint) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    std::string bytes;
    append_utf8(c, bytes);
    const Utf8Step step = utf8_step(bytes, 0);
    const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
    ASSERT_EQ(step.state == Utf8State::kValid, !surrogate) << static_cast<uint32_t>(c);
    if (surrogate) continue;
    ASSERT_EQ(step.value, c);
    ASSERT_EQ(step.size, static_cast<int>(bytes.size()));
    ASSERT_EQ(utf8_size(bytes[0]), step.size);
  }
}

TEST(Utf8, FindsTheFirstBadByte) {
  EXPECT_EQ(find_invalid_utf8("abc"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("ab\xFF"), 2);
  EXPECT_EQ(find_invalid_utf8("a\xE6\xBC"), 1);
  EXPECT_EQ(find_invalid_utf8("\xC0\x80"), 0);
  EXPECT_EQ(find_invalid_utf8("\xED\xA0\x80"), 0);
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0);
}

// The example of the Unicode standard (table 3-11) and WHATWG: one U+FFFD per maximal part.
TEST(Utf8, LossyReplacesMaximalParts) {
  const std::string bad = utf8({kReplacement});
  std::string out;
  append_lossy("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64", true, out);
  EXPECT_EQ(out, "a" + bad + bad + bad + "b" + bad + "c" + bad + bad + "d");
  out.clear();
  EXPECT_EQ(append_lossy("x\xF0\x9F\x98", false, out), 1);
  EXPECT_EQ(out, "x");
  EXPECT_EQ(append_lossy("\xF0\x9F\x98", true, out), 3);
  EXPECT_EQ(out, "x" + bad);
}

// Feeding bytes in any cuts gives what one call gives.
TEST(Utf8, LossyIsTheSameInPieces) {
  std::mt19937 random(7);
  const std::string pool = "a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80\xFF\x80";
  for (int round = 0; round < 300; ++round) {
    std::string bytes;
    for (int i = 0; i < 20; ++i) bytes.push_back(pool[random() % pool.size()]);
    std::string whole;
    append_lossy(bytes, true, whole);
    std::string pieces;
    std::string held;
    for (const char c : bytes) {
      held.push_back(c);
      held.erase(0, static_cast<size_t>(append_lossy(held, false, pieces)));
      ASSERT_LT(held.size(), 4u);
    }
    append_lossy(held, true, pieces);
    ASSERT_EQ(pieces, whole);
  }
}

TEST(Unicode, WhiteSpaceIsTheProperty) {
  int64_t count = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) count += is_white_space(c);
  EXPECT_EQ(count, 25);
  for (const char32_t c : {0x09, 0x0D, 0x20, 0x85, 0xA0, 0x3000}) EXPECT_TRUE(is_white_space(c));
  for (const char32_t c : {0x1C, 0x180E, 0x200B, 0xFEFF}) EXPECT_FALSE(is_white_space(c));
}

TEST(Unicode, WordAndNumberClasses) {
  for (const char32_t c : {U'a', U'é', U'漢', U'9', U'_', U'\u0301', U'\u200C', U'\u200D', U'\u2167', U'Ⓐ'})
    EXPECT_TRUE(is_word_character(c));
  for (const char32_t c : {U' ', U'-', U'½', U'²', U'€', U'\u200B'}) EXPECT_FALSE(is_word_character(c));
  for (const char32_t c : {U'7', U'½', U'²', U'\u2167', U'\u0663'}) EXPECT_TRUE(is_numeric(c));
  for (const char32_t c : {U'a', U'一', U'.'}) EXPECT_FALSE(is_numeric(c));
}

// Examples of UAX #15.
TEST(Unicode, NormalFormsOfTheStandard) {
  const std::string text = utf8({0x1E9B, 0x0323});
  EXPECT_EQ(normalize(text, NormalForm::kNfc), utf8({0x1E9B, 0x0323}));
  EXPECT_EQ(normalize(text, NormalForm::kNfd), utf8({0x017F, 0x0323, 0x0307}));
  EXPECT_EQ(normalize(text, NormalForm::kNfkc), utf8({0x1E69}));
  EXPECT_EQ(normalize(text, NormalForm::kNfkd), utf8({0x0073, 0x0323, 0x0307}));
  EXPECT_EQ(normalize(utf8({0x212B}), NormalForm::kNfc), utf8({0xC5}));
  EXPECT_EQ(normalize(utf8({0x1112, 0x1161, 0x11AB}), NormalForm::kNfc), utf8({0xD55C}));
  EXPECT_EQ(normalize(utf8({0xFB01}), NormalForm::kNfc), utf8({0xFB01}));
  EXPECT_EQ(normalize(utf8({0xFB01}), NormalForm::kNfkc), "fi");
  EXPECT_EQ(normalize(utf8({0x0958}), NormalForm::kNfc), utf8({0x0915, 0x093C}));  // excluded from composition
}

TEST(Unicode, NormalFormsAreIdempotentForEveryCodePoint) {
  std::string text;
  for (char32_t c = 0; c <= 0x2FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    append_utf8(c, text);
  }
  for (const NormalForm form : {NormalForm::kNfc, NormalForm::kNfd, NormalForm::kNfkc, NormalForm::kNfkd}) {
    const std::string once = normalize(text, form);
    EXPECT_EQ(find_invalid_utf8(once), std::nullopt);
    EXPECT_TRUE(normalize(once, form) == once);
  }
}

// A library's bubble sort of the marks would take hours here.
TEST(Unicode, LongRunsOfMarksAreSortedInTime) {
  std::string text = "a";
  std::string sorted = "a";
  const int64_t pairs = 200000;
  for (int64_t i = 0; i < pairs; ++i) text += utf8({0x0308, 0x0323});
  for (int64_t i = 0; i < pairs; ++i) sorted += utf8({0x0323});
  for (int64_t i = 0; i < pairs; ++i) sorted += utf8({0x0308});
  EXPECT_TRUE(normalize(text, NormalForm::kNfd) == sorted);
}

TEST(ByteAlphabet, IsOneToOne) {
  std::set<std::string_view> seen;
  for (int b = 0; b < 256; ++b) {
    const std::string_view text = byte_to_alphabet(static_cast<uint8_t>(b));
    seen.insert(text);
    EXPECT_EQ(alphabet_to_byte(utf8_step(text, 0).value), static_cast<uint8_t>(b));
  }
  EXPECT_EQ(seen.size(), 256u);
  EXPECT_EQ(byte_to_alphabet(' '), "\u0120");
  EXPECT_EQ(byte_to_alphabet('A'), "A");
  EXPECT_FALSE(alphabet_to_byte(U' ').has_value());
  EXPECT_FALSE(alphabet_to_byte(U'漢').has_value());
}

}  // namespace
}  // namespace weft::tok
