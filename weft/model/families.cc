#include "weft/model/families.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft {
namespace {

void require(bool ok, const HfConfig& hf, const char* key, const std::string& what) {
  if (!ok) throw FileError(hf.path, key, what);
}

}  // namespace

const std::vector<Family>& builtin_families() {
  static const std::vector<Family> families = {llama_family(), qwen2_family(), qwen3_family(), qwen3_moe_family(), mixtral_family()};
  return families;
}

ModelConfig base_config(const HfConfig& hf) {
  ModelConfig c;
  c.family = hf.model_type;
  c.vocab_size = hf.vocab_size;
  c.hidden_size = hf.hidden_size;
  c.intermediate_size = hf.intermediate_size;
  c.num_layers = hf.num_hidden_layers;
  c.num_heads = hf.num_attention_heads;
  c.num_kv_heads = hf.num_key_value_heads;
  c.head_dim = hf.head_dim;
  c.max_position_embeddings = hf.max_position_embeddings;
  c.norm_eps = static_cast<float>(hf.rms_norm_eps);
  c.tied = hf.tie_word_embeddings;
  c.moe_layers.assign(static_cast<size_t>(hf.num_hidden_layers), false);
  c.over_encoding = hf.over_encoding;
  require(c.num_kv_heads > 0 && c.num_heads % c.num_kv_heads == 0, hf, "num_key_value_heads",
          fmt::format("{} does not divide num_attention_heads = {}", c.num_kv_heads, c.num_heads));
  require(!hf.sliding_window, hf, "sliding_window", "sliding attention is not supported: only full attention is");
  require(hf.shared_expert_intermediate_size == 0, hf, "shared_expert_intermediate_size", "shared experts are not supported yet");
  if (hf.over_encoding) {
    const int64_t tables = over_encoding_tables(*hf.over_encoding);
    require(tables > 0 && c.hidden_size % tables == 0, hf, "over_encoding",
            fmt::format("{} tables do not divide hidden_size = {}", tables, c.hidden_size));
  }
  set_rope(hf, c);
  return c;
}

ModelConfig configure_model(const HfConfig& hf, const std::vector<Family>& extra) {
  std::vector<Family> all = extra;
  all.insert(all.end(), builtin_families().begin(), builtin_families().end());
  const auto it = std::find_if(all.begin(), all.end(), [&](const Family& f) { return f.model_type == hf.model_type; });
  if (it == all.end()) {
    std::string known;
    for (const Family& f : all) known += (known.empty() ? "" : ", ") + f.model_type;
    throw FileError(hf.path, "model_type", fmt::format("'{}' is not supported; supported: {}", hf.model_type, known));
  }
  constexpr std::string_view kCausal = "ForCausalLM";
  std::string classifier;  // the same trunk with one score for a head
  if (it->architecture.ends_with(kCausal))
    classifier = it->architecture.substr(0, it->architecture.size() - kCausal.size()) + "ForSequenceClassification";
  bool scores = false;
  for (const std::string& a : hf.architectures) {
    scores |= a == classifier;
    require(a == it->architecture || scores, hf, "architectures",
            fmt::format("'{}' is not the causal language model '{}'", a, it->architecture));
  }
  if (!hf.unread_keys().empty()) {
    std::string keys;
    for (const std::string& k : hf.unread_keys()) keys += (keys.empty() ? "" : ", ") + k;
    throw FileError(hf.path, "", fmt::format("keys that may change the model and are not supported: {}", keys));
  }
  ModelConfig config = it->configure(hf);
  config.score_head = scores;
  return config;
}

}  // namespace weft
