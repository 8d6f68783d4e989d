#pragma once
// Families: each is data in its own short file (llama.cc, qwen2.cc, ...), listed once in families.cc.

#include <string>
#include <vector>

#include "weft/model/model_config.h"

namespace weft {

struct Family {
  std::string model_type;    // of config.json
  std::string architecture;  // "LlamaForCausalLM"
  ModelConfig (*configure)(const HfConfig&);
};

// Built-in families, then those a program registered (docs/adding_a_model.md).
const std::vector<Family>& builtin_families();

// The config of a checkpoint. FileError: unknown model_type or architecture (lists what there is), unsupported values, keys with an
// effect that nothing here reads.
ModelConfig configure_model(const HfConfig& hf, const std::vector<Family>& extra = {});

// What all families share; each then changes what differs.
ModelConfig base_config(const HfConfig& hf);

Family llama_family();
Family qwen2_family();
Family qwen3_family();
Family qwen3_moe_family();
Family mixtral_family();

}  // namespace weft
