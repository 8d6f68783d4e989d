#include "weft/text/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "weft/base/error.h"
#include "weft/text/test_support.h"

namespace weft {
namespace {

using nlohmann::json;

using test::data_dir;

json read_json(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot open " + path);
  return json::parse(in);
}

class TokenizerGolden : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerGolden, EncodesAndDecodesEveryCase) {
  const Tokenizer tokenizer = Tokenizer::load(data_dir(GetParam()));
  const json cases = read_json(data_dir(GetParam()) + "/cases.json");
  ASSERT_GE(cases.size(), 300u);
  for (const json& c : cases) {
    const auto text = c.at("text").get<std::string>();
    const auto ids = c.at("ids").get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.encode(text, false), ids) << text;
    EXPECT_EQ(tokenizer.encode(text, true), c.at("ids_special").get<std::vector<int32_t>>()) << text;
    EXPECT_EQ(tokenizer.decode(ids, false), c.at("decoded").get<std::string>());
    EXPECT_EQ(tokenizer.decode(ids, true), c.at("decoded_skip").get<std::string>());
  }
}

// After every id: what was given out is final (a prefix of all later decodings), and with the flush it is the decoding.
TEST_P(TokenizerGolden, StreamsEveryPrefix) {
  const Tokenizer tokenizer = Tokenizer::load(data_dir(GetParam()));
  const json cases = read_json(data_dir(GetParam()) + "/streaming.json");
  ASSERT_GE(cases.size(), 20u);
  for (const json& c : cases) {
    const auto ids = c.at("ids").get<std::vector<int32_t>>();
    const auto prefixes = c.at("prefixes").get<std::vector<std::string>>();
    ASSERT_EQ(ids.size(), prefixes.size());
    StreamDecoder stream(tokenizer, c.at("skip_special_tokens").get<bool>());
    std::string given;
    for (size_t i = 0; i < ids.size(); ++i) {
      given += stream.push(ids[i]);
      StreamDecoder ended = stream;
      EXPECT_EQ(given + ended.flush(), prefixes[i]) << c.at("name") << " " << i;
      for (size_t j = i; j < ids.size(); ++j) EXPECT_TRUE(prefixes[j].starts_with(given)) << c.at("name") << " " << i << " " << j;
    }
  }
}

TEST_P(TokenizerGolden, EveryTokenHasItsIdAndText) {
  const Tokenizer tokenizer = Tokenizer::load(data_dir(GetParam()));
  const json file = read_json(data_dir(GetParam()) + "/tokenizer.json");
  int64_t largest = 0;
  for (const auto& [token, id] : file.at("model").at("vocab").items()) {
    EXPECT_EQ(tokenizer.token_id(token), id.get<int32_t>());
    EXPECT_EQ(tokenizer.token_text(id.get<int32_t>()), token);
    largest = std::max(largest, id.get<int64_t>());
  }
  for (const json& token : file.at("added_tokens")) {
    const auto id = token.at("id").get<int32_t>();
    EXPECT_EQ(tokenizer.token_id(token.at("content").get<std::string>()), id);
    EXPECT_EQ(tokenizer.is_special(id), token.at("special").get<bool>());
    largest = std::max<int64_t>(largest, id);
  }
  EXPECT_EQ(tokenizer.vocab_size(), largest + 1);
  EXPECT_FALSE(tokenizer.token_id("no such token").has_value());
  EXPECT_THROW(tokenizer.token_text(static_cast<int32_t>(largest) + 1), ValueError);
  EXPECT_THROW(tokenizer.token_text(-1), ValueError);
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerGolden,
                         testing::Values("gpt2", "qwen", "llama3", "o200k", "deepseek_v3", "deepseek_v2", "olmo", "llama2",
                                         "mistral", "spm_unk"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace weft
