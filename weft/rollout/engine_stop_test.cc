// Stop strings against brute force: after each token, the decoded response so far is searched.

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/rollout/engine_test_support.h"

namespace weft {
namespace {

using namespace test;

// Byte fallback: "\n" and halves of "é" are tokens, and the decoder holds bytes back until it knows whether they make characters.
constexpr const char* kByteFallback = R"({"version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [{"id": 0, "content": "<unk>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
                   {"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
  "normalizer": null, "pre_tokenizer": null, "post_processor": null,
  "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {"type": "ByteFallback"},
                                               {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": {"<unk>": 0, "</s>": 1, "<0x0A>": 2, "<0xC3>": 3, "<0xA9>": 4, "a": 5, "b": 6, "_": 7, "ab": 8, "ba": 9}, "merges": ["a b", "b a"]}})";

struct Ended {
  std::vector<int32_t> tokens;
  std::string text, reason;
  bool operator==(const Ended&) const = default;
};
void PrintTo(const Ended& e, std::ostream* out) { *out << e.tokens.size() << " tokens, \"" << e.text << "\", " << e.reason; }

// What a request must give, from the tokens that are drawn when nothing stops it.
Ended brute_force(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens, const SamplingParams& p) {
  for (size_t n = 1; n <= tokens.size(); ++n) {
    const std::vector<int32_t> so_far(tokens.begin(), tokens.begin() + static_cast<int64_t>(n));
    const std::string text = tokenizer.decode(so_far, p.skip_special_tokens);
    size_t cut = std::string::npos;
    for (const std::string& s : p.stop)
      if (const size_t at = text.find(s); at != std::string::npos)
        cut = std::min(cut, p.include_stop_str_in_output ? at + s.size() : at);
    if (cut != std::string::npos) return {so_far, text.substr(0, cut), "stop"};
  }
  return {tokens, tokenizer.decode(tokens, p.skip_special_tokens), "length"};
}

Ended engine_says(CausalLM& model, const GenerationRequest& r, const Tokenizer& tokenizer) {
  const GeneratedSample s = run(model, {r}, {}, &tokenizer).begin()->second;
  return {s.trajectory.response_ids, s.text, s.trajectory.finish_reason};
}

void hold_against_brute_force(const Tokenizer& tokenizer, const std::vector<std::vector<std::string>>& stops) {
  const int64_t vocab = tokenizer.vocab_size();
  const auto model = small_model(Kind::kDense, at::kFloat, vocab);
  int64_t stopped = 0, across = 0;
  for (uint64_t seed = 0; seed < 2; ++seed) {
    GenerationRequest r = request(1, 4, 24);
    r.prompt_ids = random_prompt(4, seed, vocab);
    r.seed = seed;
    r.params.temperature = 5.0;
    const std::vector<int32_t> tokens = engine_says(*model, r, tokenizer).tokens;
    ASSERT_EQ(tokens.size(), 24u);
    for (const auto& stop : stops)
      for (const bool include : {false, true})
        for (const bool skip : {true, false}) {
          r.params.stop = stop, r.params.include_stop_str_in_output = include, r.params.skip_special_tokens = skip;
          const Ended expected = brute_force(tokenizer, tokens, r.params);
          EXPECT_EQ(engine_says(*model, r, tokenizer), expected) << "stop \"" << testing::PrintToString(stop) << "\"";
          stopped += expected.reason == "stop";
          across += expected.reason == "stop" && tokenizer.decode({&expected.tokens.back(), 1}, skip).size() < stop[0].size();
        }
  }
  EXPECT_GT(stopped, 10);
  EXPECT_GT(across, 3);  // matches over several tokens were among them
}

TEST(EngineStop, StringsAcrossTokensOfOneCharacter) {
  hold_against_brute_force(Tokenizer::load(WEFT_SOURCE_DIR "/models/tiny-moe"), {{"0"},
                                                                                 {"12"},
                                                                                 {"+3"},
                                                                                 {" 4", "9-"},
                                                                                 {"=", "5"},
                                                                                 {"<eos>"},
                                                                                 {"77"},
                                                                                 {"8", "98", "898"},
                                                                                 {"no match"},
                                                                                 {"6="},
                                                                                 {"2 "},
                                                                                 {"31"}});
}

TEST(EngineStop, StringsInHeldBackBytes) {
  hold_against_brute_force(
      Tokenizer::from_json(kByteFallback, "test"),
      {{"\n"}, {"é"}, {"a\n"}, {"\nb"}, {"ab"}, {"ba b"}, {"é\n", "aa"}, {" a"}, {"bab", "abb"}, {"\n\n"}, {"</s>b"}});
}

TEST(EngineStop, MinTokensIgnoresEarlierMatches) {
  const Tokenizer tokenizer = Tokenizer::load(WEFT_SOURCE_DIR "/models/tiny-moe");
  const auto model = small_model(Kind::kDense, at::kFloat, tokenizer.vocab_size());
  GenerationRequest r = request(1, 4, 6);
  r.prompt_ids = {1, 4, 13, 5};
  r.params.logit_bias = {{6, 1e4f}};  // "3" for ever
  r.params.stop = {"33"};
  EXPECT_EQ(engine_says(*model, r, tokenizer), (Ended{{6, 6}, "", "stop"}));
  r.params.min_tokens = 1;
  EXPECT_EQ(engine_says(*model, r, tokenizer), (Ended{{6, 6}, "", "stop"}));
  // The match must end in a token after the first four; it may begin before.
  r.params.min_tokens = 4;
  EXPECT_EQ(engine_says(*model, r, tokenizer), (Ended{{6, 6, 6, 6, 6}, "333", "stop"}));
  r.params.include_stop_str_in_output = true;
  EXPECT_EQ(engine_says(*model, r, tokenizer), (Ended{{6, 6, 6, 6, 6}, "33333", "stop"}));
  r.params.min_tokens = 6;
  EXPECT_EQ(engine_says(*model, r, tokenizer), (Ended{{6, 6, 6, 6, 6, 6}, "333333", "length"}));
}

TEST(EngineStop, EndTokenIsKeptButNotInTheText) {
  const Tokenizer tokenizer = Tokenizer::load(WEFT_SOURCE_DIR "/models/tiny-moe");
  const auto model = small_model(Kind::kDense, at::kFloat, tokenizer.vocab_size());
  GenerationRequest r = request(1, 4, 6);
  r.prompt_ids = {1, 4, 13, 5};
  r.params.logit_bias = {{2, 1e4f}};
  EngineConfig c;
  c.end_ids = end_token_ids({}, {}, &tokenizer);
  GeneratedSample s = run(*model, {r}, c, &tokenizer).begin()->second;
  EXPECT_EQ(s.trajectory.response_ids, std::vector<int32_t>{2});
  EXPECT_EQ(s.text, "");
  r.params.skip_special_tokens = false;
  s = run(*model, {r}, c, &tokenizer).begin()->second;
  EXPECT_EQ(s.text, "<eos>");
}

}  // namespace
}  // namespace weft
