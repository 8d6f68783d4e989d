#pragma once
// config.json and generation_config.json of a Hugging Face checkpoint, as transformers 4 and 5 write them (dtype/torch_dtype,
// rope_parameters/rope_theta+rope_scaling, num_experts/num_local_experts/n_routed_experts, ...). Family-neutral: which values
// and keys a family supports is decided by weft/model, with the help of unread_keys().
// Errors: FileError naming file and key for a missing, mistyped, out-of-range or contradictory value.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/dtype.h"

namespace weft {

enum class RopeType { kDefault, kLinear, kDynamic, kYarn, kLlama3 };

// Defaults are those of transformers' own rope functions. A field that a type does not use is left at its default.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  int64_t original_max_position_embeddings = 0;
  double beta_fast = 32.0;                 // yarn
  double beta_slow = 1.0;                  // yarn
  std::optional<double> attention_factor;  // yarn; absent: derived from factor, mscale and mscale_all_dim
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  bool truncate = true;  // yarn
  double partial_rotary_factor = 1.0;
};

// N-gram input embeddings; goldens and docs define the tables.
struct OverEncodingConfig {
  int64_t ngram_vocab_size_ratio = 0;
  int64_t emb_split_num = 0;
  int64_t emb_neighbor_num = 0;
};

struct HfConfig {
  std::string model_type;
  std::vector<std::string> architectures;
  std::optional<DType> dtype;  // of the weights on disk, as the file claims
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  double rms_norm_eps = 0;
  int64_t max_position_embeddings = 0;
  bool tie_word_embeddings = false;
  std::string hidden_act;  // "silu" (also written "swish")
  bool attention_bias = false;
  bool mlp_bias = false;
  RopeConfig rope;

  int64_t num_experts = 0;  // 0: dense
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;  // = intermediate_size where the file has none (mixtral)
  bool norm_topk_prob = false;        // families without the key (mixtral) decide themselves
  int64_t decoder_sparse_step = 1;
  std::vector<int64_t> mlp_only_layers;
  int64_t shared_expert_intermediate_size = 0;  // 0: no shared expert
  double router_aux_loss_coef = 0.0;

  std::optional<int64_t> sliding_window;  // the window in effect; absent: full attention everywhere
  int64_t max_window_layers = 0;          // with a window and no layer_types: layers from here on use it
  std::vector<std::string> layer_types;

  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> pad_token_id;
  std::optional<OverEncodingConfig> over_encoding;

  std::string path;      // of the file, for messages
  std::string raw_json;  // its text, for writing back

  // Reads DIR/config.json.
  static HfConfig load(const std::string& dir);
  static HfConfig parse(std::string_view json, const std::string& path);

  // Keys of the file that may change the model and that the parser does not know ("rope_parameters." before nested ones).
  const std::vector<std::string>& unread_keys() const { return unread_keys_; }
  // Whether layer `layer` is a mixture of experts by num_experts, mlp_only_layers and decoder_sparse_step.
  bool is_moe_layer(int64_t layer) const;
  // raw_json with its dtype replaced (under the spelling that the file uses) and everything else as it was.
  std::string json_with_dtype(DType new_dtype) const;

 private:
  std::vector<std::string> unread_keys_;
};

struct GenerationConfig {
  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> pad_token_id;
  std::string raw_json;  // empty: the checkpoint has no generation_config.json

  static GenerationConfig load(const std::string& dir);
};

}  // namespace weft
