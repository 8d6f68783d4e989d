#pragma once
// A Hugging Face checkpoint directory as a model in memory, with what is needed to write it back.

#include <memory>
#include <string>
#include <vector>

#include "weft/checkpoint/export_stream.h"
#include "weft/checkpoint/hf_weights.h"
#include "weft/io/hf_config.h"
#include "weft/model/causal_lm.h"
#include "weft/model/families.h"
#include "weft/parallel/rank_mesh.h"

namespace weft {

// What a model ends in: the vocabulary's head; one score a position ("score.weight", of a sequence classifier with one label); or
// such a head on any checkpoint's trunk, zero where the checkpoint has none.
enum class ModelHead { kVocabulary, kScore, kFreshScore };

// What a directory says about a model, besides its weights.
struct ModelFiles {
  std::string dir;
  HfConfig hf;
  GenerationConfig generation;
  ModelConfig config;
};
ModelFiles read_model_files(const std::string& path_or_hub_id, const std::vector<Family>& extra_families = {},
                            ModelHead head = ModelHead::kVocabulary);

struct LoadedModel : ModelFiles {
  std::vector<WeightEntry> entries;
  std::optional<WeightEntry> tied_head;
  DiskManifest manifest;
  std::unique_ptr<CausalLM> model;

  std::shared_ptr<const RankMesh> mesh;  // null: one rank holds all
};

// `param_dtype` fp32 or bf16; nullopt: what the checkpoint says (float16 is refused: choose one of the two).
// `device` "cpu" or "cuda"; a clear error where there is no GPU. With a mesh of several ranks (all call) the parameters are
// sharded by layer, and this rank allocates and reads its own parts only; `plan` has a user's entries over the model's table
// (parallelize.h).
LoadedModel load_model(const std::string& path_or_hub_id, std::optional<DType> param_dtype, const std::string& device = "cpu",
                       const std::vector<Family>& extra_families = {}, std::shared_ptr<const RankMesh> mesh = nullptr,
                       const std::vector<std::string>& plan = {}, ModelHead head = ModelHead::kVocabulary,
                       const nn::ParameterMemory& memory = {});

// The same with the weights on disk looked at, not read: whoever calls fills the masters.
LoadedModel open_model(const std::string& path_or_hub_id, std::optional<DType> param_dtype, const std::string& device = "cpu",
                       const std::vector<Family>& extra_families = {}, std::shared_ptr<const RankMesh> mesh = nullptr,
                       const std::vector<std::string>& plan = {}, ModelHead head = ModelHead::kVocabulary);

// The same without weights on disk: config.json only, initialised from `seed`; written back in `disk_dtype`.
LoadedModel create_model(const std::string& dir, DType param_dtype, DType disk_dtype, uint64_t seed,
                         const std::string& device = "cpu", const std::vector<Family>& extra_families = {},
                         std::shared_ptr<const RankMesh> mesh = nullptr, const std::vector<std::string>& plan = {},
                         const nn::ParameterMemory& memory = {});

// What load_model would refuse about this mesh, from config.json alone, before any rank starts. UsageError.
void check_model_on_mesh(const std::string& path_or_hub_id, const std::vector<Family>& extra_families, const ParallelDims& dims,
                         const TokenSharing& sharing, const std::vector<std::string>& plan);

// The masters as checkpoint/export_stream.h takes them; the model lives as long.
ExportSources export_sources(const LoadedModel& m);
// Every tensor of the manifest - of the checkpoint on disk: its names, shapes and order, its dtypes or `dtype` - whole, one at a
// time, on rank options.root of the model's mesh. Collective over it. Errors as of the other export_stream.
ExportReport export_stream(const LoadedModel& m, std::optional<DType> dtype, const ExportOptions& options,
                           const ExportSink& sink);

// What a Hugging Face directory has beside its weights: config.json, and generation_config.json, tokenizer and chat template
// files copied from `m.dir`. `dir` exists and is empty.
void save_model_files(const LoadedModel& m, const std::string& dir);
// The complete directory, of a model that one rank holds.
void save_model(const LoadedModel& m, const std::string& dir);

}  // namespace weft
