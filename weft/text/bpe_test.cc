#include "weft/text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "weft/base/error.h"

namespace weft::tok {
namespace {

using nlohmann::json;

Bpe make(const json& model) {
  static const std::string kFile = "test.json";
  return Bpe::parse(JsonNode(model, kFile));
}

std::vector<int32_t> encode(const Bpe& bpe, const std::string& text) {
  std::vector<int32_t> out;
  bpe.encode(text, out);
  return out;
}

// The definition: merge the pair of lowest rank, the leftmost on a tie, until none is left.
std::vector<int32_t> by_definition(const json& model, const std::string& text) {
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t i = 0; i < model["merges"].size(); ++i) ranks[{model["merges"][i][0], model["merges"][i][1]}] = i;
  std::vector<std::string> symbols;
  for (const char c : text) symbols.emplace_back(1, c);
  while (true) {
    size_t best = SIZE_MAX;
    size_t at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = ranks.find({symbols[i], symbols[i + 1]});
      if (it != ranks.end() && it->second < best) {
        best = it->second;
        at = i;
      }
    }
    if (best == SIZE_MAX) break;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<int64_t>(at) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& symbol : symbols) ids.push_back(model["vocab"][symbol].get<int32_t>());
  return ids;
}

json random_model(std::mt19937& random) {
  json model{{"type", "BPE"}, {"vocab", {{"a", 5}, {"b", 3}, {"c", 9}}}, {"merges", json::array()}};
  std::vector<std::string> tokens{"a", "b", "c"};
  std::map<std::pair<std::string, std::string>, bool> used;
  int32_t next = 100;
  for (int i = 0; i < 25; ++i) {
    const std::string left = tokens[random() % tokens.size()];
    const std::string right = tokens[random() % tokens.size()];
    if (!used.emplace(std::pair(left, right), true).second) continue;
    if (!model["vocab"].contains(left + right)) {
      model["vocab"][left + right] = next++;
      tokens.push_back(left + right);
    }
    model["merges"].push_back({left, right});
  }
  std::shuffle(model["merges"].begin(), model["merges"].end(), random);
  return model;
}

TEST(Bpe, EqualsItsDefinitionOnShortAndLongPieces) {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    const json model = random_model(random);
    const Bpe bpe = make(model);
    for (const size_t size : {1, 2, 5, 23, 24, 25, 60, 150}) {
      std::string text;
      for (size_t i = 0; i < size; ++i) text.push_back("abc"[random() % 3]);
      ASSERT_EQ(encode(bpe, text), by_definition(model, text)) << text << " " << model.dump();
    }
  }
}

TEST(Bpe, LongPiecesTakeNearlyLinearTime) {
  json model{{"vocab", {{"a", 0}}}, {"merges", json::array()}};
  for (int i = 0; i < 12; ++i) {
    model["vocab"][std::string(size_t{2} << i, 'a')] = i + 1;
    model["merges"].push_back({std::string(size_t{1} << i, 'a'), std::string(size_t{1} << i, 'a')});
  }
  EXPECT_EQ(encode(make(model), std::string(1 << 19, 'a')), std::vector<int32_t>((1 << 19) / 4096, 12));
}

TEST(Bpe, BytesThenUnknown) {
  json model{{"vocab", {{"a", 0}, {"<unk>", 1}, {"<0xC3>", 2}, {"<0xA9>", 3}}},
             {"merges", json::array()},
             {"unk_token", "<unk>"},
             {"byte_fallback", true}};
  EXPECT_EQ(encode(make(model), "a\u00E9\u6F22\u6F22a"), (std::vector<int32_t>{0, 2, 3, 1, 1, 0}));
  model["fuse_unk"] = true;
  EXPECT_EQ(encode(make(model), "a\u00E9\u6F22\u6F22a\u6F22"), (std::vector<int32_t>{0, 2, 3, 1, 0, 1}));
  model["byte_fallback"] = false;
  EXPECT_EQ(encode(make(model), "\u00E9\u6F22a"), (std::vector<int32_t>{1, 0}));
  model.erase("unk_token");
  EXPECT_EQ(encode(make(model), "\u00E9\u6F22a"), (std::vector<int32_t>{0}));
  model["unk_token"] = "[none]";
  EXPECT_EQ(encode(make(model), "a"), (std::vector<int32_t>{0}));
  EXPECT_THROW(encode(make(model), "\u6F22"), ValueError);
}

TEST(Bpe, IgnoreMergesTakesWholePieces) {
  json model{{"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", json::array()}};
  EXPECT_EQ(encode(make(model), "ab"), (std::vector<int32_t>{0, 1}));
  model["ignore_merges"] = true;
  EXPECT_EQ(encode(make(model), "ab"), (std::vector<int32_t>{2}));
  EXPECT_EQ(encode(make(model), "aba"), (std::vector<int32_t>{0, 1, 0}));
}

std::string complaint(const json& model) {
  try {
    make(model);
  } catch (const FileError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Bpe, RefusesBadModelsAndSaysWhere) {
  const json good{{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}};
  EXPECT_EQ(complaint(good), "accepted");
  const auto with = [&](const char* key, const json& value) {
    json model = good;
    model[key] = value;
    return complaint(model);
  };
  EXPECT_EQ(with("type", "Unigram"), "test.json: type: model \"Unigram\" is not supported (supported: BPE)");
  EXPECT_EQ(with("merges", {"a b", "a c"}), "test.json: merges[1]: \"c\" is not in the vocabulary");
  EXPECT_EQ(with("merges", {"b a"}), "test.json: merges[0]: \"ba\" is not in the vocabulary");
  for (const json& merges : {json{"ab"}, json{"a b a"}, json::array({json{"a"}}), json::array({1}), json::object(), json("x")}) {
    EXPECT_NE(with("merges", merges), "accepted") << merges;
  }
  for (const json& id : {json(-1), json(1.5), json("0"), json(nullptr), json(int64_t{1} << 24), json(UINT64_MAX), json(1)}) {
    EXPECT_NE(with("vocab", {{"a", id}, {"b", 1}, {"ab", 2}}), "accepted") << id;
  }
  EXPECT_NE(with("vocab", json::array()), "accepted");
  EXPECT_NE(with("dropout", 0.1), "accepted");
  EXPECT_NE(with("end_of_word_suffix", "</w>"), "accepted");
  EXPECT_NE(with("fuse_unk", "yes"), "accepted");
  EXPECT_EQ(with("dropout", 0.0), "accepted");
  EXPECT_EQ(with("continuing_subword_prefix", ""), "accepted");
}

}  // namespace
}  // namespace weft::tok
