// Files and texts from outside that are wrong: each is refused with its place, none crashes or runs away.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "weft/base/error.h"
#include "weft/text/test_support.h"
#include "weft/text/tokenizer.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

using test::data_dir;

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

json small_file() {
  return {{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}}},
          {"decoder", {{"type", "Fuse"}}}};
}

std::string complaint(const std::string& text) {
  try {
    Tokenizer::from_json(text, "t.json");
  } catch (const FileError& e) {
    return e.what();
  }
  return "accepted";
}

std::string with(const std::string& pointer, const json& value) {
  json file = small_file();
  file[json::json_pointer(pointer)] = value;
  return complaint(file.dump());
}

TEST(TokenizerFile, NamesTheByteOfMalformedJson) {
  EXPECT_EQ(complaint(small_file().dump()), "accepted");
  EXPECT_THAT(complaint("{\"model\": }"), HasSubstr("t.json: byte 10: not JSON"));
  EXPECT_THAT(complaint(""), HasSubstr("byte 0"));
  EXPECT_THAT(complaint("{\"a\": \"\xFF\"}"), HasSubstr("byte 7"));
  EXPECT_THAT(complaint("{\"a\": \"\\ud800\"}"), HasSubstr("not JSON"));
  EXPECT_THAT(complaint(std::string(1000000, '[')), HasSubstr("byte 64: nested deeper than 64"));
  for (const char* text : {"null", "[]", "3", "\"x\"", "{}"}) EXPECT_NE(complaint(text), "accepted") << text;
}

TEST(TokenizerFile, NamesTheFieldAndWhatIsSupported) {
  EXPECT_EQ(with("/normalizer", {{"type", "BertNormalizer"}}),
            "t.json: normalizer.type: normalizer \"BertNormalizer\" is not supported (supported: Sequence, NFC, NFD, NFKC, NFKD, "
            "Prepend, Replace)");
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Digits"}}, {{"type", "Whitespace"}}}}}),
              HasSubstr("t.json: pre_tokenizer.pretokenizers[1].type: pre-tokenizer \"Whitespace\" is not supported"));
  EXPECT_THAT(with("/decoder", {{"type", "WordPiece"}}), HasSubstr("decoder.type: decoder \"WordPiece\" is not supported"));
  EXPECT_THAT(with("/post_processor", {{"type", "BertProcessing"}}), HasSubstr("post_processor.type"));
  EXPECT_THAT(with("/model/type", "WordPiece"), HasSubstr("model.type: model \"WordPiece\" is not supported (supported: BPE)"));
  EXPECT_THAT(with("/model/vocab/a", 1e9), HasSubstr("model.vocab"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}}),
              HasSubstr("pre_tokenizer.pattern.Regex: regular expression, offset 1"));
}

TEST(TokenizerFile, RefusesWrongValuesEverywhere) {
  const json split{{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Isolated"}};
  const auto changed = [](json node, const char* key, const json& value) {
    node[key] = value;
    return node;
  };
  const std::vector<std::pair<std::string, json>> wrong{
      {"/normalizer", 3},
      {"/normalizer", json::object()},
      {"/normalizer", {{"type", 4}}},
      {"/normalizer", {{"type", "Sequence"}, {"normalizers", 1}}},
      {"/normalizer", {{"type", "Prepend"}}},
      {"/normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}}},
      {"/normalizer", {{"type", "Replace"}, {"pattern", json::object()}, {"content", ""}}},
      {"/pre_tokenizer", changed(split, "behavior", "Sometimes")},
      {"/pre_tokenizer", changed(split, "invert", "no")},
      {"/pre_tokenizer", changed(split, "pattern", "a")},
      {"/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "__"}}},
      {"/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}}},
      {"/decoder", {{"type", "Strip"}, {"content", ""}, {"start", 1}, {"stop", 0}}},
      {"/decoder", {{"type", "Strip"}, {"content", "a"}, {"start", -1}, {"stop", 0}}},
      {"/decoder", {{"type", "Strip"}, {"content", "a"}, {"start", 1}, {"stop", UINT64_MAX}}},
      {"/added_tokens", {{{"id", 0}}}},
      {"/added_tokens", {{{"id", -1}, {"content", "x"}}}},
      {"/added_tokens", {{{"id", int64_t{1} << 40}, {"content", "x"}}}},
      {"/added_tokens", {{{"id", 9}, {"content", std::string(5000, 'x')}}}},
      {"/added_tokens", {{{"id", 9}, {"content", "x"}}, {{"id", 9}, {"content", "x"}, {"lstrip", true}}}},
      {"/added_tokens", json::object()},
      {"/model/vocab/zzz", 3000000000},
      {"/post_processor", {{"type", "TemplateProcessing"}, {"single", json::array()}, {"special_tokens", json::object()}}},
  };
  for (const auto& [pointer, value] : wrong) EXPECT_NE(with(pointer, value), "accepted") << pointer << " " << value;
  // A hole in the vocabulary makes the next free id one that is taken.
  EXPECT_THAT(with("/model/vocab", {{"a", 0}, {"b", 1}, {"ab", 3}}), "accepted");
  json file = small_file();
  file["model"]["vocab"]["ab"] = 3;
  file["added_tokens"] = {{{"id", 4}, {"content", "x"}}};
  EXPECT_THAT(complaint(file.dump()), HasSubstr("added_tokens[0]: \"x\" would get the id 3"));
}

TEST(TokenizerFile, NestedSequencesHaveALimit) {
  json node{{"type", "NFC"}};
  for (int i = 0; i < 12; ++i) node = {{"type", "Sequence"}, {"normalizers", {node}}};
  EXPECT_THAT(with("/normalizer", node), HasSubstr("nested deeper"));
}

TEST(TokenizerFile, MultiplyingStagesAreRefused) {
  json stages = json::array();
  for (int i = 0; i < 60; ++i) stages.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  EXPECT_THAT(with("/normalizer", {{"type", "Sequence"}, {"normalizers", stages}}),
              HasSubstr("normalizer.normalizers[10]: the stages"));
  EXPECT_THAT(with("/decoder", {{"type", "Sequence"}, {"decoders", stages}}), HasSubstr("decoder.decoders[10]: the stages"));
  EXPECT_THAT(with("/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "a*"}}}, {"content", std::string(2000, 'a')}}),
              HasSubstr("as long"));
  EXPECT_THAT(with("/normalizer", {{"type", "Prepend"}, {"prepend", std::string(5000, 'a')}}), HasSubstr("more than 4096 bytes"));
}

TEST(TokenizerFile, EveryCutIsRefused) {
  const std::string text = small_file().dump();
  for (size_t size = 0; size < text.size(); ++size) EXPECT_NE(complaint(text.substr(0, size)), "accepted") << size;
}

TEST(TokenizerText, MustBeUtf8) {
  const Tokenizer tokenizer = Tokenizer::load(data_dir("gpt2"));
  try {
    tokenizer.encode("abc\xC3(", false);
    FAIL();
  } catch (const ValueError& e) {
    EXPECT_STREQ(e.what(), "the text is not UTF-8: byte 3 is 0xC3");
  }
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(std::string("a\0b", 3), false), false), std::string("a\0b", 3));
}

TEST(TokenizerText, LongOddTextsComeBack) {
  for (const char* name : {"gpt2", "deepseek_v2", "llama3", "o200k", "deepseek_v3"}) {
    const Tokenizer tokenizer = Tokenizer::load(data_dir(name));
    for (const char* unit : {" ", "a", "A", "\n", "1", "!", "\u6F22", "\u0301", "\u00A0"}) {
      std::string text;
      for (int i = 0; i < 1 << 14; ++i) text += unit;
      text += "\u6F22";
      EXPECT_TRUE(tokenizer.decode(tokenizer.encode(text, false), false) == text) << name << " " << unit;
    }
  }
}

TEST(Tokenizer, IsSharedByThreads) {
  const Tokenizer tokenizer = Tokenizer::load(data_dir("qwen"));
  const json cases = json::parse(read(data_dir("qwen") + "/cases.json"));
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, copy = tokenizer] {
        for (const json& c : cases) {
          const auto ids = c.at("ids").get<std::vector<int32_t>>();
          if (copy.encode(c.at("text").get<std::string>(), false) != ids || tokenizer.decode(ids, false) != c.at("decoded"))
            ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST(StreamDecoder, OutlivesItsTokenizerAndGivesPlainTextAtOnce) {
  std::optional<Tokenizer> tokenizer = Tokenizer::load(data_dir("gpt2"));
  const std::vector<int32_t> ids = tokenizer->encode("plain text, no wait", false);
  StreamDecoder stream(*tokenizer, true);
  std::string whole;
  for (const int32_t id : ids) {
    const std::string expected = tokenizer->decode(std::vector<int32_t>{id}, false);
    const std::string given = stream.push(id);
    EXPECT_EQ(given, expected);
    whole += given;
  }
  tokenizer.reset();
  EXPECT_EQ(whole + stream.flush(), "plain text, no wait");
}

class ConfigFolder : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    write("tokenizer.json", small_file().dump());
  }
  void TearDown() override { fs::remove_all(dir_); }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name, std::ios::binary) << text;
  }
  std::string refusal() {
    try {
      Tokenizer::load(dir_.string());
    } catch (const FileError& e) {
      return e.what();
    }
    return "accepted";
  }
  fs::path dir_;
};

TEST_F(ConfigFolder, AllButTheTokenizerMayBeAbsent) {
  const Tokenizer tokenizer = Tokenizer::load(dir_.string());
  EXPECT_FALSE(tokenizer.bos_id() || tokenizer.eos_id() || tokenizer.pad_id());
  EXPECT_TRUE(tokenizer.special_tokens().empty());
  EXPECT_TRUE(tokenizer.chat_templates().empty());
  fs::remove(dir_ / "tokenizer.json");
  EXPECT_THAT(refusal(), HasSubstr("tokenizer.json: there is no such file"));
  fs::create_directory(dir_ / "tokenizer.json");
  EXPECT_THAT(refusal(), HasSubstr("not a regular file"));
}

TEST_F(ConfigFolder, NamesSpecialTokens) {
  write("tokenizer_config.json", R"({"bos_token": "a", "eos_token": {"content": "b"}, "pad_token": "[PAD]", "unk_token": null,
                                     "add_bos_token": true, "extra_special_tokens": {"image_token": "ab"}})");
  write("special_tokens_map.json", R"({"bos_token": "b", "cls_token": {"content": "ab"}})");
  const Tokenizer tokenizer = Tokenizer::load(dir_.string());
  EXPECT_EQ(tokenizer.bos_id(), 0);
  EXPECT_EQ(tokenizer.eos_id(), 1);
  EXPECT_EQ(tokenizer.pad_id(), std::nullopt);
  const std::map<std::string, std::string> expected{
      {"bos_token", "a"}, {"eos_token", "b"}, {"pad_token", "[PAD]"}, {"image_token", "ab"}, {"cls_token", "ab"}};
  EXPECT_EQ(tokenizer.special_tokens(), expected);
  write("tokenizer_config.json", R"({"eos_token": "<gone>"})");
  EXPECT_THAT(refusal(), HasSubstr("eos_token: the config names \"<gone>\""));
  write("tokenizer_config.json", R"({"eos_token": 3})");
  EXPECT_THAT(refusal(), HasSubstr("tokenizer_config.json: eos_token: expected a string, found number"));
  write("tokenizer_config.json", "[]");
  EXPECT_THAT(refusal(), HasSubstr("expected an object"));
}

TEST_F(ConfigFolder, FindsChatTemplates) {
  using Templates = std::map<std::string, std::string>;
  write("tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_EQ(Tokenizer::load(dir_.string()).chat_templates(), (Templates{{"default", "one"}}));
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "x"}, {"name": "rag", "template": "y"}]})");
  EXPECT_EQ(Tokenizer::load(dir_.string()).chat_templates(), (Templates{{"default", "x"}, {"rag", "y"}}));
  write("chat_template.jinja", "file");
  write("additional_chat_templates/tool_use.jinja", "tools");
  write("additional_chat_templates/notes.txt", "no template");
  EXPECT_EQ(Tokenizer::load(dir_.string()).chat_templates(), (Templates{{"default", "file"}, {"tool_use", "tools"}}));
  write("chat_template.jinja", "\xFF");
  EXPECT_THAT(refusal(), HasSubstr("chat_template.jinja: byte 0: not UTF-8"));
  fs::remove(dir_ / "chat_template.jinja");
  fs::remove_all(dir_ / "additional_chat_templates");
  write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_NE(refusal(), "accepted");
}

TEST(TokenizerConfig, OfTheRecordedFolders) {
  const Tokenizer qwen = Tokenizer::load(data_dir("qwen"));
  EXPECT_EQ(qwen.token_text(qwen.eos_id().value()), "<|im_end|>");
  EXPECT_EQ(qwen.token_text(qwen.pad_id().value()), "<|endoftext|>");
  EXPECT_FALSE(qwen.bos_id().has_value());
  EXPECT_EQ(qwen.chat_templates().size(), 2u);
  const Tokenizer llama = Tokenizer::load(data_dir("llama2"));
  EXPECT_EQ(llama.bos_id(), 1);
  EXPECT_EQ(llama.special_tokens().at("bos_token"), "<s>");
  EXPECT_FALSE(Tokenizer::load(data_dir("mistral")).chat_templates().empty());
}

}  // namespace
}  // namespace weft
