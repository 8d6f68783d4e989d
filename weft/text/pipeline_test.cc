// Single stages of tokenizer.json and how they join: rules that the recorded pipelines do not reach.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/text/tokenizer.h"

namespace weft {
namespace {

using nlohmann::json;
using testing::ElementsAre;

// Every ASCII character is a token, so that the tokens of a text are its pieces only where `words` are whole pieces.
json base_file(const std::vector<std::string>& words = {}) {
  json file{{"model", {{"type", "BPE"}, {"vocab", json::object()}, {"merges", json::array()}, {"ignore_merges", true}}},
            {"decoder", {{"type", "Fuse"}}}};
  json& vocab = file["model"]["vocab"];
  for (char c = 32; c < 127; ++c) vocab[std::string(1, c)] = vocab.size();
  for (const char* text : {"\u2581", "\u0120", "\n"}) vocab[text] = vocab.size();
  for (const std::string& word : words) {
    if (!vocab.contains(word)) vocab[word] = vocab.size();
  }
  return file;
}

Tokenizer make(const json& file) { return Tokenizer::from_json(file.dump(), "test.json"); }

std::vector<std::string> tokens(const json& file, const std::string& text) {
  const Tokenizer tokenizer = make(file);
  std::vector<std::string> out;
  for (const int32_t id : tokenizer.encode(text, false)) out.push_back(tokenizer.token_text(id));
  return out;
}

json split_by(const std::string& regex, const std::string& behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", behavior}, {"invert", invert}};
}

TEST(PreTokenizer_Split, HasFiveBehaviors) {
  json file = base_file({"a", "-", "--", "b", "a-", "-b", "b-", "a--b"});
  file["pre_tokenizer"] = split_by("-", "Isolated");
  EXPECT_THAT(tokens(file, "a--b"), ElementsAre("a", "-", "-", "b"));
  file["pre_tokenizer"] = split_by("-", "Removed");
  EXPECT_THAT(tokens(file, "a--b"), ElementsAre("a", "b"));
  file["pre_tokenizer"] = split_by("-", "MergedWithPrevious");
  EXPECT_THAT(tokens(file, "a--b-"), ElementsAre("a-", "-", "b-"));
  file["pre_tokenizer"] = split_by("-", "MergedWithNext");
  EXPECT_THAT(tokens(file, "a--b-"), ElementsAre("a", "-", "-b", "-"));
  file["pre_tokenizer"] = split_by("-", "Contiguous");
  EXPECT_THAT(tokens(file, "a--b"), ElementsAre("a", "--", "b"));
  file["pre_tokenizer"] = split_by("[ab]", "Removed", true);
  EXPECT_THAT(tokens(file, "a--b"), ElementsAre("a", "b"));
  file["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", "Isolated"}};
  EXPECT_THAT(tokens(file, "a-b"), ElementsAre("a", "-", "b"));
}

TEST(PreTokenizer_ByteLevel, AddsAPrefixSpaceWhenAsked) {
  json file = base_file({"\u0120ab", "ab"});
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  EXPECT_THAT(tokens(file, "ab ab"), ElementsAre("\u0120ab", "\u0120ab"));
  EXPECT_THAT(tokens(file, " ab"), ElementsAre("\u0120ab"));
  file["pre_tokenizer"]["add_prefix_space"] = false;
  EXPECT_THAT(tokens(file, "ab ab"), ElementsAre("ab", "\u0120ab"));
}

TEST(PreTokenizer_Digits, KeepsRunsUnlessIndividual) {
  json file = base_file({"12", "ab"});
  file["pre_tokenizer"] = {{"type", "Digits"}, {"individual_digits", false}};
  EXPECT_THAT(tokens(file, "ab12ab"), ElementsAre("ab", "12", "ab"));
  file["pre_tokenizer"]["individual_digits"] = true;
  EXPECT_THAT(tokens(file, "ab12ab"), ElementsAre("ab", "1", "2", "ab"));
}

TEST(PreTokenizer_Metaspace, OldFilesSayAddPrefixSpace) {
  json file = base_file({"\u2581ab", "ab"});
  file["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"add_prefix_space", false}};
  EXPECT_THAT(tokens(file, "ab ab"), ElementsAre("ab", "\u2581ab"));
  file["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_THAT(tokens(file, "ab ab"), ElementsAre("\u2581ab", "\u2581ab"));
  file["pre_tokenizer"]["prepend_scheme"] = "never";
  EXPECT_THAT(tokens(file, "ab ab"), ElementsAre("ab", "\u2581ab"));
}

json added(const std::string& content, const json& flags = json::object()) {
  json token{{"id", 0},         {"content", content},  {"single_word", false}, {"lstrip", false},
             {"rstrip", false}, {"normalized", false}, {"special", false}};
  token.update(flags);
  return token;
}

TEST(AddedTokens, AreLeftmostThenLongest) {
  json file = base_file();
  file["added_tokens"] = {added("<a>"), added("<a><b>"), added("b><"), added("xy")};
  EXPECT_THAT(tokens(file, "<a><b><"), ElementsAre("<a><b>", "<"));
  EXPECT_THAT(tokens(file, "<a><c"), ElementsAre("<a>", "<", "c"));
  EXPECT_THAT(tokens(file, "b><a>"), ElementsAre("b><", "a", ">"));
  EXPECT_THAT(tokens(file, "xxyy"), ElementsAre("x", "xy", "y"));
}

TEST(AddedTokens, SingleWordGoesOnBehindADroppedMatch) {
  json file = base_file();
  file["added_tokens"] = {added("word", {{"single_word", true}}), added("rdx")};
  EXPECT_THAT(tokens(file, "swordx"), ElementsAre("s", "w", "o", "r", "d", "x"));
  EXPECT_THAT(tokens(file, "-word-"), ElementsAre("-", "word", "-"));
  EXPECT_THAT(tokens(file, "word"), ElementsAre("word"));
}

TEST(AddedTokens, StripWhatIsBesideThem) {
  json file = base_file();
  file["added_tokens"] = {added("<r>", {{"rstrip", true}}), added("<l>", {{"lstrip", true}}), added("  ")};
  EXPECT_THAT(tokens(file, "a<r>  b"), ElementsAre("a", "<r>", "  ", "b"));
  EXPECT_THAT(tokens(file, "a<r> \u3000\n b"), ElementsAre("a", "<r>", "b"));
  EXPECT_THAT(tokens(file, "a \n<l>b"), ElementsAre("a", "<l>", "b"));
  EXPECT_THAT(tokens(file, "<r> <l>b"), ElementsAre("<r>", "<l>", "b"));
}

TEST(AddedTokens, RawMatchesWinOverNormalised) {
  json file = base_file();
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "B"}}}, {"content", "b"}};
  file["added_tokens"] = {added("aB", {{"normalized", true}}), added("Bc")};
  EXPECT_THAT(tokens(file, "aBc"), ElementsAre("a", "Bc"));
  EXPECT_THAT(tokens(file, "abd"), ElementsAre("aB", "d"));
}

TEST(AddedTokens, GetTheNextFreeId) {
  json file = base_file();
  const auto size = static_cast<int32_t>(file["model"]["vocab"].size());
  file["added_tokens"] = {added("<x>", {{"id", 5000}}), added("a"), added("<y>", {{"id", 4000}}), added("<x>", {{"id", 5000}})};
  const Tokenizer tokenizer = make(file);
  EXPECT_EQ(tokenizer.token_id("<x>"), size);
  EXPECT_EQ(tokenizer.token_id("<y>"), size + 1);
  EXPECT_EQ(tokenizer.token_id("a"), file["model"]["vocab"]["a"].get<int32_t>());
  EXPECT_EQ(tokenizer.vocab_size(), size + 2);
}

std::string decoded(const json& decoder, const std::vector<std::string>& words) {
  json file = base_file(words);
  file["decoder"] = decoder;
  const Tokenizer tokenizer = make(file);
  std::vector<int32_t> ids;
  for (const std::string& word : words) ids.push_back(*tokenizer.token_id(word));
  const std::string text = tokenizer.decode(ids, false);
  StreamDecoder stream(tokenizer, false);
  for (int round = 0; round < 2; ++round) {  // a flushed stream starts anew
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.push(id);
    EXPECT_EQ(streamed + stream.flush(), text);
  }
  return text;
}

json chain(std::initializer_list<json> stages) { return {{"type", "Sequence"}, {"decoders", json(stages)}}; }

TEST(Decoder, StagesAloneAndInChains) {
  const json fuse{{"type", "Fuse"}};
  const json strip{{"type", "Strip"}, {"content", "_"}, {"start", 1}, {"stop", 2}};
  const json replace{{"type", "Replace"}, {"pattern", {{"String", "ab"}}}, {"content", "X"}};
  const json bytes{{"type", "ByteFallback"}};
  EXPECT_EQ(decoded(nullptr, {"a", "b"}), "a b");
  EXPECT_EQ(decoded(chain({}), {"a", "b"}), "ab");
  EXPECT_EQ(decoded(strip, {"__a_", "_b___"}), "_ab_");
  EXPECT_EQ(decoded(chain({fuse, strip}), {"__a_", "_b__", "_"}), "_a__b_");
  EXPECT_EQ(decoded(chain({fuse, strip}), {"_", "_", "_", "_"}), "_");
  EXPECT_EQ(decoded(replace, {"a", "b", "ab"}), "abX");
  EXPECT_EQ(decoded(chain({fuse, replace}), {"a", "b", "ab"}), "XX");
  EXPECT_EQ(decoded(bytes, {"<0xC3>", "<0xA9>", "x", "<0xC3>", "y"}), "\u00E9x\uFFFDy");
  EXPECT_EQ(decoded(bytes, {"<0xc3>", "<0xZZ>"}), "\uFFFD<0xZZ>");
  EXPECT_EQ(decoded(chain({fuse, bytes}), {"<0x", "41>"}), "A");
  EXPECT_EQ(decoded(chain({fuse, {{"type", "ByteLevel"}}}), {"\u0120", "a"}), " a");
  EXPECT_EQ(decoded({{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "never"}}, {"\u2581a", "\u2581b"}),
            " a b");
  EXPECT_EQ(decoded({{"type", "Metaspace"}, {"replacement", "\u2581"}}, {"\u2581a\u2581", "\u2581b"}), "a b");
}

TEST(PostProcessor, TemplatesNest) {
  json file = base_file();
  const auto around = [](const char* token, int32_t id) {
    return json{{"type", "TemplateProcessing"},
                {"single",
                 {{{"SpecialToken", {{"id", token}, {"type_id", 0}}}},
                  {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                  {{"SpecialToken", {{"id", token}, {"type_id", 0}}}}}},
                {"special_tokens", {{token, {{"id", token}, {"ids", {id}}, {"tokens", {token}}}}}}};
  };
  file["post_processor"] = {{"type", "Sequence"}, {"processors", {around("p", 1), around("q", 2)}}};
  EXPECT_THAT(make(file).encode("", true), ElementsAre(2, 1, 1, 2));
  file["post_processor"] = around("p", 100000);
  EXPECT_THROW(make(file), FileError);
}

}  // namespace
}  // namespace weft
