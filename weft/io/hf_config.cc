#include "weft/io/hf_config.h"

#include <algorithm>
#include <filesystem>

#include "weft/base/error.h"
#include "weft/io/atomic_file.h"
#include "weft/io/hf_rope.h"
#include "weft/io/json_fields.h"
#include "weft/io/json_file.h"

namespace weft {
namespace {

// Far above any model, low enough that products of two stay inside int64.
constexpr int64_t kMaxSize = int64_t{1} << 30;
constexpr int64_t kMaxLayers = 1 << 16;

// What a class of transformers assumes where the file is silent.
struct ClassDefaults {
  bool tie_word_embeddings = false;
  double rope_theta = 10000.0;
  bool use_sliding_window = true;
};

ClassDefaults class_defaults(const std::string& model_type) {
  static const char* const kUntied[] = {"llama",     "mistral", "mixtral",     "qwen2",       "qwen3",
                                        "qwen2_moe", "olmoe",   "deepseek_v2", "deepseek_v3", "qwen3_moe"};
  ClassDefaults defaults;
  defaults.tie_word_embeddings = std::find(std::begin(kUntied), std::end(kUntied), model_type) == std::end(kUntied);
  if (model_type == "mixtral") defaults.rope_theta = 1e6;
  if (model_type.starts_with("qwen")) defaults.use_sliding_window = false;
  return defaults;
}

// Keys that describe the file, its training or its decoding, never the function that the weights compute.
constexpr const char* kHarmless[] = {"transformers_version",
                                     "_name_or_path",
                                     "initializer_range",
                                     "use_cache",
                                     "id2label",
                                     "label2id",
                                     "problem_type",
                                     "return_dict",
                                     "output_attentions",
                                     "output_hidden_states",
                                     "output_router_logits",
                                     "chunk_size_feed_forward",
                                     "task_specific_params",
                                     "torchscript",
                                     "finetuning_task",
                                     "_attn_implementation",
                                     "attn_implementation",
                                     "use_return_dict",
                                     "auto_map",
                                     "prefix",
                                     "tokenizer_class",
                                     "max_length",
                                     "min_length",
                                     "do_sample",
                                     "temperature",
                                     "top_k",
                                     "top_p",
                                     "typical_p",
                                     "repetition_penalty",
                                     "length_penalty",
                                     "num_beams",
                                     "num_beam_groups",
                                     "diversity_penalty",
                                     "early_stopping",
                                     "no_repeat_ngram_size",
                                     "encoder_no_repeat_ngram_size",
                                     "bad_words_ids",
                                     "num_return_sequences",
                                     "output_scores",
                                     "return_dict_in_generate",
                                     "forced_bos_token_id",
                                     "forced_eos_token_id",
                                     "remove_invalid_values",
                                     "exponential_decay_length_penalty",
                                     "suppress_tokens",
                                     "begin_suppress_tokens",
                                     "decoder_start_token_id",
                                     "sep_token_id",
                                     "unk_token_id",
                                     "_model_name_or_path",
                                     "torch_compile",
                                     "_experts_implementation",
                                     "use_bfloat16",
                                     "pruned_heads"};
// Keys that change nothing while they hold this value.
struct Neutral {
  const char* key;
  double value;
};
constexpr Neutral kNeutral[] = {{"attention_dropout", 0},
                                {"hidden_dropout", 0},
                                {"resid_pdrop", 0},
                                {"embd_pdrop", 0},
                                {"router_jitter_noise", 0},
                                {"pretraining_tp", 1},
                                {"is_encoder_decoder", 0},
                                {"is_decoder", 0},
                                {"add_cross_attention", 0},
                                {"tie_encoder_decoder", 0},
                                {"cross_attention_hidden_size", 0},
                                {"use_mrope", 0}};

void mark_harmless(JsonFields& fields, const nlohmann::json& root) {
  for (const char* key : kHarmless) fields.mark_read(key);
  for (const Neutral& entry : kNeutral) {
    const auto it = root.find(entry.key);
    if (it == root.end()) continue;
    const double value = it->is_number() ? it->get<double>() : it->is_boolean() ? (it->get<bool>() ? 1 : 0) : -1;
    if (value == entry.value) fields.mark_read(entry.key);
  }
}

std::optional<DType> read_dtype(JsonFields& fields) {
  std::optional<DType> result;
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto text = fields.text(key);
    if (!text) continue;
    const auto dtype = parse_dtype(*text);
    if (!dtype) fields.fail(key, fmt::format("unknown dtype \"{}\"", *text));
    if (result && *result != *dtype) fields.fail(key, fmt::format("\"{}\" contradicts \"dtype\"", *text));
    result = dtype;
  }
  return result;
}

void read_heads(JsonFields& fields, HfConfig& config) {
  config.num_attention_heads = fields.required_integer("num_attention_heads", 1, kMaxSize);
  config.num_key_value_heads = fields.integer("num_key_value_heads", 1, kMaxSize).value_or(config.num_attention_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.fail("num_key_value_heads",
                fmt::format("{} does not divide num_attention_heads {}", config.num_key_value_heads, config.num_attention_heads));
  }
  const auto head_dim = fields.integer("head_dim", 1, 1 << 16);
  if (!head_dim && config.hidden_size % config.num_attention_heads != 0) {
    fields.fail("head_dim", fmt::format("missing, and hidden_size {} is not a multiple of num_attention_heads {}",
                                        config.hidden_size, config.num_attention_heads));
  }
  config.head_dim = head_dim.value_or(config.hidden_size / config.num_attention_heads);
}

void read_experts(JsonFields& fields, HfConfig& config) {
  config.num_experts = fields.integer_of({"num_experts", "num_local_experts", "n_routed_experts"}, 0, 65536).value_or(0);
  config.num_experts_per_tok = fields.integer("num_experts_per_tok", 0, 65536).value_or(0);
  config.moe_intermediate_size = fields.integer("moe_intermediate_size", 0, kMaxSize).value_or(config.intermediate_size);
  config.norm_topk_prob = fields.boolean("norm_topk_prob").value_or(false);
  config.decoder_sparse_step = fields.integer("decoder_sparse_step", 1, kMaxLayers).value_or(1);
  config.mlp_only_layers = fields.integers("mlp_only_layers", 0, kMaxLayers).value_or(std::vector<int64_t>{});
  config.shared_expert_intermediate_size = fields.integer("shared_expert_intermediate_size", 0, kMaxSize).value_or(0);
  config.router_aux_loss_coef = fields.number("router_aux_loss_coef", 0, 1e6).value_or(0);
  if (config.num_experts == 0) return;
  if (config.num_experts_per_tok < 1 || config.num_experts_per_tok > config.num_experts) {
    fields.fail("num_experts_per_tok",
                fmt::format("{} is not from 1 to the {} experts", config.num_experts_per_tok, config.num_experts));
  }
  if (config.moe_intermediate_size == 0) fields.fail("moe_intermediate_size", "0 with experts");
}

void read_attention_kind(JsonFields& fields, HfConfig& config, const ClassDefaults& defaults) {
  const auto window = fields.integer("sliding_window", 1, kMaxSize);
  const bool in_use = fields.boolean("use_sliding_window").value_or(defaults.use_sliding_window);
  config.max_window_layers = fields.integer("max_window_layers", 0, kMaxLayers).value_or(0);
  config.layer_types = fields.texts("layer_types").value_or(std::vector<std::string>{});
  if (!config.layer_types.empty() && static_cast<int64_t>(config.layer_types.size()) != config.num_hidden_layers) {
    fields.fail("layer_types", fmt::format("{} entries for {} layers", config.layer_types.size(), config.num_hidden_layers));
  }
  const bool all_full = !config.layer_types.empty() && std::all_of(config.layer_types.begin(), config.layer_types.end(),
                                                                   [](const auto& type) { return type == "full_attention"; });
  if (window && in_use && !all_full) config.sliding_window = window;
}

void read_token_ids(JsonFields& fields, std::vector<int64_t>& eos, std::optional<int64_t>& bos, std::optional<int64_t>& pad) {
  eos = fields.integers("eos_token_id", 0, kMaxSize).value_or(std::vector<int64_t>{});
  bos = fields.integer("bos_token_id", 0, kMaxSize);
  // Llama 1 checkpoints write -1 for "none".
  pad = fields.integer("pad_token_id", -1, kMaxSize);
  if (pad == -1) pad.reset();
}

}  // namespace

HfConfig HfConfig::load(const std::string& dir) {
  const std::string file = dir + "/config.json";
  return parse(read_text_file(file, int64_t{16} << 20), file);
}

HfConfig HfConfig::parse(std::string_view json, const std::string& path) {
  const nlohmann::json root = parse_json(json, path);
  JsonFields fields(root, path);
  HfConfig config;
  config.path = path;
  config.raw_json = json;
  const auto model_type = fields.text("model_type");
  if (!model_type || model_type->empty()) fields.fail("model_type", "missing");
  config.model_type = *model_type;
  const ClassDefaults defaults = class_defaults(config.model_type);
  config.architectures = fields.texts("architectures").value_or(std::vector<std::string>{});
  config.dtype = read_dtype(fields);
  config.vocab_size = fields.required_integer("vocab_size", 1, kMaxSize);
  config.hidden_size = fields.required_integer("hidden_size", 1, kMaxSize);
  config.intermediate_size = fields.required_integer("intermediate_size", 1, kMaxSize);
  config.num_hidden_layers = fields.required_integer("num_hidden_layers", 1, kMaxLayers);
  read_heads(fields, config);
  const auto eps = fields.number("rms_norm_eps", 0, 1);
  if (!eps) fields.fail("rms_norm_eps", "missing");
  config.rms_norm_eps = *eps;
  config.max_position_embeddings = fields.required_integer("max_position_embeddings", 1, kMaxSize);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings").value_or(defaults.tie_word_embeddings);
  config.hidden_act = fields.text("hidden_act").value_or("silu");
  if (config.hidden_act == "swish") config.hidden_act = "silu";
  if (config.hidden_act != "silu") {
    fields.fail("hidden_act", fmt::format("\"{}\" is not supported; supported: silu", config.hidden_act));
  }
  config.attention_bias = fields.boolean("attention_bias").value_or(false);
  config.mlp_bias = fields.boolean("mlp_bias").value_or(false);
  std::vector<std::string> unread_rope;
  config.rope = read_rope(fields, path, config.max_position_embeddings, defaults.rope_theta, unread_rope);
  read_experts(fields, config);
  read_attention_kind(fields, config, defaults);
  read_token_ids(fields, config.eos_token_ids, config.bos_token_id, config.pad_token_id);
  if (const nlohmann::json* object = fields.object("over_encoding")) {
    JsonFields over(*object, path, "over_encoding.");
    config.over_encoding = OverEncodingConfig{over.required_integer("ngram_vocab_size_ratio", 1, 1 << 20),
                                              over.required_integer("emb_split_num", 1, 1 << 10),
                                              over.required_integer("emb_neighbor_num", 2, 1 << 10)};
    config.unread_keys_ = over.unread();
  }
  mark_harmless(fields, root);
  for (const std::string& key : fields.unread()) config.unread_keys_.push_back(key);
  config.unread_keys_.insert(config.unread_keys_.end(), unread_rope.begin(), unread_rope.end());
  return config;
}

bool HfConfig::is_moe_layer(int64_t layer) const {
  if (num_experts == 0) return false;
  if (std::find(mlp_only_layers.begin(), mlp_only_layers.end(), layer) != mlp_only_layers.end()) return false;
  return (layer + 1) % decoder_sparse_step == 0;
}

std::string HfConfig::json_with_dtype(DType new_dtype) const {
  nlohmann::ordered_json root = parse_ordered_json(raw_json, path);
  const bool old_spelling = root.contains("torch_dtype");
  if (old_spelling) root["torch_dtype"] = dtype_name(new_dtype);
  if (!old_spelling || root.contains("dtype")) root["dtype"] = dtype_name(new_dtype);
  return root.dump(2) + "\n";
}

GenerationConfig GenerationConfig::load(const std::string& dir) {
  GenerationConfig config;
  const std::string path = dir + "/generation_config.json";
  if (!std::filesystem::exists(path)) return config;
  config.raw_json = read_text_file(path, int64_t{16} << 20);
  const nlohmann::json root = parse_json(config.raw_json, path);
  JsonFields fields(root, path);
  read_token_ids(fields, config.eos_token_ids, config.bos_token_id, config.pad_token_id);
  return config;
}

}  // namespace weft
