#include "weft/io/hf_config.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "weft/io/atomic_file.h"
#include "weft/io/hub_cache.h"
#include "weft/io/test_files.h"

namespace weft {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

json base() {
  return {{"model_type", "llama"},  {"vocab_size", 97},         {"hidden_size", 32},    {"intermediate_size", 56},
          {"num_hidden_layers", 3}, {"num_attention_heads", 4}, {"rms_norm_eps", 1e-6}, {"max_position_embeddings", 256}};
}

HfConfig parse(const json& config) { return HfConfig::parse(config.dump(), "config.json"); }

HfConfig parse_with(const json& changes) {
  json config = base();
  config.update(changes);
  return parse(config);
}

std::string error_with(const json& changes) {
  return message_of<FileError>([&] { parse_with(changes); });
}

TEST(HfConfig, ReadsGoldenModels) {
  for (const char* model : {"llama", "llama3_rope", "qwen2", "qwen3", "qwen3_yarn", "qwen3_moe", "qwen3_moe_oe", "mixtral"}) {
    const HfConfig config = HfConfig::load(test_data(std::string("models/") + model));
    EXPECT_EQ(config.vocab_size, 97) << model;
    EXPECT_EQ(config.num_key_value_heads, 2) << model;
    EXPECT_EQ(config.dtype, DType::kF32) << model;
    EXPECT_THAT(config.eos_token_ids, ElementsAre(2)) << model;
    EXPECT_EQ(config.pad_token_id, 0) << model;
    EXPECT_FALSE(config.sliding_window.has_value()) << model;
    EXPECT_THAT(config.unread_keys(), IsEmpty()) << model;
  }
  const HfConfig llama3 = HfConfig::load(test_data("models/llama3_rope"));
  EXPECT_EQ(llama3.rope.type, RopeType::kLlama3);
  EXPECT_EQ(llama3.rope.theta, 5000.0);
  EXPECT_EQ(llama3.rope.factor, 4.0);
  EXPECT_EQ(llama3.rope.high_freq_factor, 4.0);
  EXPECT_EQ(llama3.rope.original_max_position_embeddings, 16);
  EXPECT_TRUE(llama3.tie_word_embeddings);
  const HfConfig yarn = HfConfig::load(test_data("models/qwen3_yarn"));
  EXPECT_EQ(yarn.rope.type, RopeType::kYarn);
  EXPECT_EQ(yarn.rope.original_max_position_embeddings, 64);
  EXPECT_EQ(yarn.rope.beta_fast, 32.0);
  EXPECT_EQ(yarn.head_dim, 16);
  EXPECT_EQ(HfConfig::load(test_data("models/qwen2")).head_dim, 8);
  const HfConfig mixtral = HfConfig::load(test_data("models/mixtral"));
  EXPECT_EQ(mixtral.num_experts, 5);
  EXPECT_EQ(mixtral.moe_intermediate_size, 40);
  EXPECT_EQ(mixtral.head_dim, 8);
  const HfConfig oe = HfConfig::load(test_data("models/qwen3_moe_oe"));
  ASSERT_TRUE(oe.over_encoding.has_value());
  EXPECT_EQ(oe.over_encoding->ngram_vocab_size_ratio, 3);
  EXPECT_EQ(oe.over_encoding->emb_split_num, 2);
  EXPECT_EQ(oe.over_encoding->emb_neighbor_num, 3);
  EXPECT_EQ(oe.num_experts, 6);
  EXPECT_EQ(oe.num_experts_per_tok, 2);
  EXPECT_EQ(oe.moe_intermediate_size, 24);
  EXPECT_TRUE(oe.norm_topk_prob);
  EXPECT_TRUE(oe.is_moe_layer(0));
  EXPECT_FALSE(oe.is_moe_layer(1));
  EXPECT_THAT(GenerationConfig::load(test_data("models/llama")).eos_token_ids, ElementsAre(2));
}

TEST(HfConfig, ReadsLargeModels) {
  const auto load = [](const char* name) {
    const std::string path = test_data(std::string("configs/") + name);
    return HfConfig::parse(read_text_file(path), path);
  };
  const HfConfig qwen = load("qwen3-235b-a22b.json");
  EXPECT_EQ(qwen.num_experts, 128);
  EXPECT_EQ(qwen.head_dim, 128);
  EXPECT_FALSE(qwen.dtype.has_value());
  EXPECT_THAT(qwen.eos_token_ids, IsEmpty());
  for (const char* name : {"qwen3-0.6b.json", "qwen3-30b-a3b.json", "mixtral-8x7b.json", "qwen3-235b-a22b.json"}) {
    EXPECT_THAT(load(name).unread_keys(), IsEmpty()) << name;
  }
  const HfConfig deepseek = load("deepseek-v3-671b.json");
  EXPECT_EQ(deepseek.num_experts, 256);
  EXPECT_THAT(deepseek.unread_keys(), ::testing::IsSupersetOf({"kv_lora_rank", "n_group", "first_k_dense_replace"}));
}

TEST(HfConfig, OldAndNewSpellingsAgree) {
  const json scaling = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  const HfConfig old_style = parse_with({{"torch_dtype", "bfloat16"},
                                         {"rope_theta", 5e5},
                                         {"rope_scaling", scaling},
                                         {"num_experts", 8},
                                         {"num_experts_per_tok", 2}});
  json parameters = scaling;
  parameters.erase("type");
  parameters["rope_type"] = "yarn";
  parameters["rope_theta"] = 5e5;
  for (const char* experts : {"num_local_experts", "n_routed_experts"}) {
    const HfConfig new_style =
        parse_with({{"dtype", "torch.bfloat16"}, {"rope_parameters", parameters}, {experts, 8}, {"num_experts_per_tok", 2}});
    for (const HfConfig* config : {&old_style, &new_style}) {
      EXPECT_EQ(config->dtype, DType::kBF16);
      EXPECT_EQ(config->rope.type, RopeType::kYarn);
      EXPECT_EQ(config->rope.theta, 5e5);
      EXPECT_EQ(config->rope.factor, 4.0);
      EXPECT_EQ(config->rope.original_max_position_embeddings, 64);
      EXPECT_EQ(config->num_experts, 8);
      EXPECT_THAT(config->unread_keys(), IsEmpty());
    }
  }
}

TEST(HfConfig, FillsDefaultsOfTransformers) {
  const HfConfig config = parse(base());
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_EQ(config.rope.type, RopeType::kDefault);
  EXPECT_EQ(config.hidden_act, "silu");
  EXPECT_EQ(config.num_experts, 0);
  EXPECT_FALSE(config.is_moe_layer(0));
  EXPECT_EQ(parse_with({{"model_type", "mixtral"}}).rope.theta, 1e6);
  EXPECT_TRUE(parse_with({{"model_type", "gemma"}}).tie_word_embeddings);
  EXPECT_EQ(parse_with({{"head_dim", nullptr}}).head_dim, 8);
  EXPECT_EQ(parse_with({{"hidden_act", "swish"}}).hidden_act, "silu");
}

TEST(HfConfig, ResolvesSlidingWindow) {
  EXPECT_EQ(parse_with({{"model_type", "mixtral"}, {"sliding_window", 128}}).sliding_window, 128);
  EXPECT_EQ(parse_with({{"model_type", "mixtral"}, {"sliding_window", nullptr}}).sliding_window, std::nullopt);
  EXPECT_EQ(parse_with({{"model_type", "qwen2"}, {"sliding_window", 128}}).sliding_window, std::nullopt);
  EXPECT_EQ(parse_with({{"model_type", "qwen2"}, {"sliding_window", 128}, {"use_sliding_window", false}}).sliding_window,
            std::nullopt);
  EXPECT_EQ(parse_with({{"model_type", "qwen2"}, {"sliding_window", 128}, {"use_sliding_window", true}}).sliding_window, 128);
  const json full = {"full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(parse_with({{"model_type", "mixtral"}, {"sliding_window", 128}, {"layer_types", full}}).sliding_window, std::nullopt);
}

TEST(HfConfig, ReadsTokenIds) {
  const HfConfig config = parse_with({{"eos_token_id", {2, 7}}, {"bos_token_id", 1}, {"pad_token_id", -1}});
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2, 7));
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.pad_token_id, std::nullopt);
}

TEST(HfConfig, ListsKeysThatItDoesNotKnow) {
  const json config = {{"quantization_config", {{"bits", 4}}},
                       {"use_qk_norm", true},
                       {"unused", nullptr},
                       {"attention_dropout", 0.0},
                       {"pretraining_tp", 1},
                       {"use_cache", true},
                       {"unk_token_id", 0},
                       {"_model_name_or_path", "converted"},
                       {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}, {"mrope_section", {1, 2}}}}};
  EXPECT_THAT(parse_with(config).unread_keys(), ElementsAre("quantization_config", "use_qk_norm", "rope_scaling.mrope_section"));
  EXPECT_THAT(parse_with({{"attention_dropout", 0.1}}).unread_keys(), ElementsAre("attention_dropout"));
  EXPECT_THAT(parse_with({{"pretraining_tp", 2}}).unread_keys(), ElementsAre("pretraining_tp"));
  // A yarn key beside another type would be silently without effect.
  EXPECT_THAT(parse_with({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}, {"beta_fast", 1.0}}}}).unread_keys(),
              ElementsAre("rope_scaling.beta_fast"));
}

TEST(HfConfig, NamesMissingKeys) {
  for (const char* key : {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "rms_norm_eps", "max_position_embeddings"}) {
    json config = base();
    config.erase(key);
    EXPECT_THAT(message_of<FileError>([&] { parse(config); }), HasSubstr(fmt::format("config.json: key \"{}\": missing", key)));
  }
}

TEST(HfConfig, NamesBadValues) {
  const struct {
    json changes;
    const char* expected;
  } cases[] = {
      {{{"vocab_size", "97"}}, "\"vocab_size\""},
      {{{"vocab_size", 97.5}}, "\"vocab_size\""},
      {{{"hidden_size", -1}}, "\"hidden_size\""},
      {{{"hidden_size", 18446744073709551615u}}, "\"hidden_size\""},
      {{{"num_hidden_layers", 0}}, "\"num_hidden_layers\""},
      {{{"num_key_value_heads", 3}}, "does not divide num_attention_heads 4"},
      {{{"hidden_size", 34}}, "\"head_dim\""},
      {{{"rms_norm_eps", "x"}}, "\"rms_norm_eps\""},
      {{{"tie_word_embeddings", 1}}, "\"tie_word_embeddings\""},
      {{{"hidden_act", "gelu"}}, "\"gelu\" is not supported"},
      {{{"dtype", "auto"}}, "unknown dtype \"auto\""},
      {{{"dtype", "float32"}, {"torch_dtype", "bfloat16"}}, "contradicts"},
      {{{"eos_token_id", {1, "2"}}}, "\"eos_token_id\""},
      {{{"num_experts", 8}}, "\"num_experts_per_tok\""},
      {{{"num_experts", 8}, {"num_experts_per_tok", 9}}, "not from 1 to the 8 experts"},
      {{{"num_experts", 8}, {"num_local_experts", 6}, {"num_experts_per_tok", 2}}, "contradicts \"num_experts\""},
      {{{"layer_types", {"full_attention"}}}, "1 entries for 3 layers"},
      {{{"rope_scaling", {{"type", "longrope"}}}}, "\"longrope\" is not supported"},
      {{{"rope_scaling", {{"type", "linear"}}}}, "\"rope_scaling.factor\": missing"},
      {{{"rope_scaling", {{"type", "linear"}, {"rope_type", "yarn"}}}}, "contradicts"},
      {{{"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}}}, "\"rope_scaling.factor\""},
      {{{"rope_scaling", 3}}, "not an object"},
      {{{"rope_theta", 1e4}, {"rope_parameters", {{"rope_theta", 5e4}}}}, "contradicts"},
      {{{"rope_parameters", {{"full_attention", {{"rope_theta", 5e4}}}}}}, "per layer type"},
      {{{"rope_parameters", {{"rope_type", "llama3"}, {"factor", 8.0}}}}, "\"rope_parameters.original_max_position_embeddings\""},
      {{{"over_encoding", {{"emb_split_num", 2}}}}, "\"over_encoding.ngram_vocab_size_ratio\": missing"},
  };
  for (const auto& c : cases) EXPECT_THAT(error_with(c.changes), HasSubstr(c.expected)) << c.changes;
  EXPECT_THAT(message_of<FileError>([] { HfConfig::parse("[]", "config.json"); }), HasSubstr("not a JSON object"));
  EXPECT_THAT(message_of<FileError>([] { HfConfig::parse("{", "config.json"); }), HasSubstr("byte"));
}

TEST(HfConfig, KeepsTextAndReplacesDtype) {
  const std::string text = read_text_file(test_data("models/mixtral/config.json"));
  const HfConfig config = HfConfig::parse(text, "config.json");
  EXPECT_EQ(config.raw_json, text);
  std::string expected = text;
  expected.replace(expected.find("float32"), 7, "bfloat16");
  while (expected.back() == '\n') expected.pop_back();
  EXPECT_EQ(config.json_with_dtype(DType::kBF16), expected + "\n");
  const std::string old_style = parse_with({{"torch_dtype", "float16"}}).json_with_dtype(DType::kF32);
  EXPECT_THAT(old_style, HasSubstr("\"torch_dtype\": \"float32\""));
  EXPECT_THAT(old_style, ::testing::Not(HasSubstr("\"dtype\"")));
}

TEST(GenerationConfig, MayBeAbsentOrBroken) {
  TemporaryDirectory dir;
  EXPECT_THAT(GenerationConfig::load(dir.path()).eos_token_ids, IsEmpty());
  dir.write("generation_config.json", R"({"eos_token_id": [3, 4], "temperature": 0.6})");
  EXPECT_THAT(GenerationConfig::load(dir.path()).eos_token_ids, ElementsAre(3, 4));
  dir.write("generation_config.json", R"({"eos_token_id": -4})");
  EXPECT_THROW(GenerationConfig::load(dir.path()), FileError);
}

TEST(HubCache, ResolvesDirectoriesAndIds) {
  TemporaryDirectory dir;
  ::setenv("HF_HUB_CACHE", dir.path().c_str(), 1);
  const std::string root = dir.file("models--org--name");
  fs::create_directories(root + "/refs");
  fs::create_directories(root + "/snapshots/abc123");
  dir.write("models--org--name/refs/main", "abc123\n");
  EXPECT_EQ(resolve_model_path("org/name"), root + "/snapshots/abc123");
  EXPECT_EQ(resolve_model_path(dir.path()), dir.path());
  EXPECT_THAT(message_of<FileError>([] { resolve_model_path("org/other"); }), HasSubstr("hf download org/other"));
  for (const char* bad : {"", "../name", "org/../x", "a/b/c", "/nowhere", "org/", "-x/y"}) {
    EXPECT_THAT(message_of<FileError>([&] { resolve_model_path(bad); }), ::testing::Not(HasSubstr("hf download"))) << bad;
  }
  EXPECT_THROW(resolve_model_path(dir.file("models--org--name/refs/main")), FileError);
  dir.write("models--org--name/refs/main", "../../x");
  EXPECT_THAT(message_of<FileError>([] { resolve_model_path("org/name"); }), HasSubstr("not a revision"));
  dir.write("models--org--name/refs/main", "gone");
  EXPECT_THAT(message_of<FileError>([] { resolve_model_path("org/name"); }), HasSubstr("snapshot is missing"));
  ::unsetenv("HF_HUB_CACHE");
  ::setenv("HF_HOME", "/nowhere", 1);
  EXPECT_EQ(hub_cache_directory(), "/nowhere/hub");
  ::unsetenv("HF_HOME");
}

}  // namespace
}  // namespace weft
