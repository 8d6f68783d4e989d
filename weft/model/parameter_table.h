#pragma once
// A model as a table of parameters, from its config.json alone: names, shapes, what each axis does to them. For plans of memory
// and traffic; families that weft cannot run yet have a table, too. No tensor is allocated.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/io/hf_latent_attention.h"
#include "weft/mesh/sharding_plan.h"
#include "weft/model/families.h"

namespace weft {

struct TableRow {
  std::string name;  // as nn::Parameter's
  std::vector<int64_t> shape;
  bool rounded = true;  // to param_dtype; else fp32 (docs/numerics.md, rule 7)
  int64_t layer = -1;   // its fully_shard group; -1: the outermost

  int64_t numel() const;
};

struct ParameterTable {
  ModelConfig config;  // of a family that does not run: sizes, moe_layers and the experts' sizes only
  std::optional<LatentAttentionConfig> latent;
  int64_t shared_intermediate_size = 0;  // of a MoE layer's shared experts; 0: none
  bool runs = true;                      // whether this version of weft can run the model
  std::vector<TableRow> rows;            // in the order of CausalLM::parameters()
  ShardingPlan plan;
  std::vector<std::string> own_axes;  // that a mesh may name
  std::vector<std::string> notes;     // what was left out, for a person

  int64_t num_parameters() const;
  int64_t active_parameters() const;  // that one token's forward reads: of the routed experts top_k
};

// FileError as configure_model; for sizes that no machine has.
ParameterTable parameter_table(const HfConfig& hf, bool sequence_parallel = false, const std::vector<Family>& extra = {});

// The table of the DeepSeek-V3 family (latent_table.cc).
ParameterTable latent_table(const HfConfig& hf, bool sequence_parallel);

}  // namespace weft
