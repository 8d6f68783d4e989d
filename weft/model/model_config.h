#pragma once
// A model as data. Families fill it from a Hugging Face config (families.h); blocks read it and know no family's name.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/io/hf_config.h"
#include "weft/kernels/moe.h"

namespace weft {

struct MoeConfig {
  int64_t num_experts = 0, top_k = 0;
  int64_t intermediate_size = 0;  // of one expert
  kernels::RouterScore score = kernels::RouterScore::kSoftmax;
  bool normalize = true;   // gates sum to one over the chosen experts
  float scale = 1.0f;
  // Names on disk: "model.layers.3." + block + ".gate.weight", block + ".experts.7." + gate + ".weight", ...
  std::string block = "mlp", gate = "gate_proj", up = "up_proj", down = "down_proj";
};

struct ModelConfig {
  std::string family;
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;
  int64_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t max_position_embeddings = 0;
  float norm_eps = 1e-6f;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;  // RMSNorm over head_dim of q and k before RoPE
  bool tied = false;     // the head is the embedding table
  bool score_head = false;  // "score.weight" [1, H] in place of the vocabulary's head: critics and reward models
  std::vector<float> inv_freq;  // [head_dim/2]
  double rope_attention_factor = 1.0;
  std::vector<bool> moe_layers;  // one entry a layer
  MoeConfig moe;
  std::optional<OverEncodingConfig> over_encoding;

  bool has_moe() const;
  // Global ids of the MoE layers, ascending: the layers of a routing trace.
  std::vector<int32_t> moe_layer_ids() const;
  // Earlier tokens that an input position reads (over-encoding), 0 without.
  int64_t history() const { return over_encoding ? over_encoding->emb_neighbor_num - 1 : 0; }
};

// Rows of over-encoding table e: ratio*vocab + 2e + 1.
int64_t over_encoding_rows(const OverEncodingConfig& c, int64_t vocab, int64_t e);
int64_t over_encoding_tables(const OverEncodingConfig& c);

// inv_freq and the attention factor of default, linear, yarn (arXiv:2309.00071) and llama3 RoPE. FileError for what is not supported.
void set_rope(const HfConfig& hf, ModelConfig& config);

}  // namespace weft
