#pragma once
// A Hugging Face checkpoint directory as a model in memory, with what is needed to write it back.

#include <memory>
#include <string>
#include <vector>

#include "weft/checkpoint/hf_weights.h"
#include "weft/io/hf_config.h"
#include "weft/model/causal_lm.h"
#include "weft/model/families.h"

namespace weft {

struct LoadedModel {
  std::string dir;
  HfConfig hf;
  GenerationConfig generation;
  std::vector<WeightEntry> entries;
  std::optional<WeightEntry> tied_head;
  DiskManifest manifest;
  std::unique_ptr<CausalLM> model;

  MasterByName masters() const;
};

// `param_dtype` fp32 or bf16; nullopt: what the checkpoint says (float16 is refused: choose one of the two).
// `device` "cpu" or "cuda"; a clear error where there is no GPU.
LoadedModel load_model(const std::string& path_or_hub_id, std::optional<DType> param_dtype, const std::string& device = "cpu",
                       const std::vector<Family>& extra_families = {});

// The same without weights on disk: config.json only, initialised from `seed`; written back in `disk_dtype`.
LoadedModel create_model(const std::string& dir, DType param_dtype, DType disk_dtype, uint64_t seed, const std::string& device = "cpu",
                         const std::vector<Family>& extra_families = {});

// Writes a complete Hugging Face directory: weights, config.json, generation_config.json, tokenizer and chat template files copied from
// `m.dir`. `dir` exists and is empty.
void save_model(const LoadedModel& m, const std::string& dir);

}  // namespace weft
