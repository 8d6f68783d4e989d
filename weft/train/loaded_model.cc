#include "weft/train/loaded_model.h"

#include <ATen/Context.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/io/atomic_file.h"
#include "weft/io/hub_cache.h"
#include "weft/model/parallelize.h"
#include "weft/model/weight_map.h"
#include "weft/parallel/fully_shard.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kScore = "score.weight";

at::Device parse_device(const std::string& device) {
  if (device == "cpu") return at::kCPU;
  if (device != "cuda") throw UsageError(fmt::format("device = \"{}\": expected \"cpu\" or \"cuda\"", device));
  if (!at::hasCUDA())
    throw UsageError(
        "device = \"cuda\": no CUDA device or no CUDA in this libtorch. Use device = \"cpu\", or a build against a CUDA libtorch "
        "(tools/build_with_pip_torch.sh) on a machine with a GPU");
  return at::Device(at::kCUDA, 0);
}

at::ScalarType scalar_of(DType dtype, const std::string& where) {
  if (dtype == DType::kF32) return at::kFloat;
  if (dtype == DType::kBF16) return at::kBFloat16;
  throw UsageError(fmt::format("{}: param_dtype {} is not supported: choose float32 or bfloat16", where, dtype_name(dtype)));
}

LoadedModel build(const std::string& dir, std::optional<DType> param_dtype, const std::string& device,
                  const std::vector<Family>& extra, std::shared_ptr<const RankMesh> mesh, const std::vector<std::string>& plan,
                  ModelHead head, const nn::ParameterMemory& memory) {
  LoadedModel m{read_model_files(dir, extra, head), {}, {}, {}, {}, {}};
  m.entries = weight_map(m.config);
  if (m.config.tied && !m.config.score_head) m.tied_head = tied_head(m.config);
  m.model = std::make_unique<CausalLM>(m.config, scalar_of(param_dtype.value_or(m.hf.dtype.value_or(DType::kF32)), dir));
  if (mesh && mesh->world.size() > 1) {
    m.mesh = mesh;
    parallelize(*m.model, mesh, plan);
  } else if (!plan.empty()) {  // without effect on one rank, but not unread
    const std::vector<nn::Parameter*> all = m.model->parameters();
    (void)plan_of(m.model->config(), ParallelDims{}, false, plan, {all.begin(), all.end()});
  }
  m.model->set_memory(memory);
  m.model->materialize(parse_device(device));
  return m;
}

}  // namespace

ModelFiles read_model_files(const std::string& path_or_hub_id, const std::vector<Family>& extra_families, ModelHead head) {
  ModelFiles f;
  f.dir = resolve_model_path(path_or_hub_id);
  f.hf = HfConfig::load(f.dir);
  f.generation = GenerationConfig::load(f.dir);
  f.config = configure_model(f.hf, extra_families);
  if (f.config.score_head && head == ModelHead::kVocabulary)
    throw FileError(f.dir + "/config.json", "architectures",
                    "is a sequence classifier, without a vocabulary's head: it can be critic.path or reward_model.path");
  f.config.score_head = head != ModelHead::kVocabulary;
  return f;
}

namespace {

// Another head than the one asked for does no harm to a trunk.
OtherHead other_head(ModelHead head) {
  return head == ModelHead::kFreshScore ? OtherHead{{"lm_head.weight"}, {kScore}} : OtherHead();
}

}  // namespace

LoadedModel open_model(const std::string& path_or_hub_id, std::optional<DType> param_dtype, const std::string& device,
                       const std::vector<Family>& extra_families, std::shared_ptr<const RankMesh> mesh,
                       const std::vector<std::string>& plan, ModelHead head) {
  LoadedModel m = build(path_or_hub_id, param_dtype, device, extra_families, std::move(mesh), plan, head, {});
  m.manifest = check_hf_weights(Checkpoint(m.dir), m.entries, m.tied_head, other_head(head));
  return m;
}

LoadedModel load_model(const std::string& path_or_hub_id, std::optional<DType> param_dtype, const std::string& device,
                       const std::vector<Family>& extra_families, std::shared_ptr<const RankMesh> mesh,
                       const std::vector<std::string>& plan, ModelHead head, const nn::ParameterMemory& memory) {
  LoadedModel m = build(path_or_hub_id, param_dtype, device, extra_families, std::move(mesh), plan, head, memory);
  const Checkpoint disk(m.dir);
  const auto part = [&m](const std::string& name) {
    const nn::Parameter* p = m.model->find_parameter(name);
    WEFT_CHECK(p, "no parameter {}", name);
    return ParameterPart{p->master(), local_boxes(*p)};
  };
  m.manifest = load_hf_weights(disk, m.entries, m.tied_head, part, nullptr, other_head(head));
  if (head == ModelHead::kFreshScore && !disk.contains(kScore)) {
    at::NoGradGuard guard;
    m.model->find_parameter(kScore)->master().zero_();
    m.manifest.push_back({kScore, DType::kF32});
  }
  for (nn::Parameter* p : m.model->parameters()) p->updated();
  return m;
}

LoadedModel create_model(const std::string& dir, DType param_dtype, DType disk_dtype, uint64_t seed, const std::string& device,
                         const std::vector<Family>& extra_families, std::shared_ptr<const RankMesh> mesh,
                         const std::vector<std::string>& plan, const nn::ParameterMemory& memory) {
  LoadedModel m = build(dir, param_dtype, device, extra_families, std::move(mesh), plan, ModelHead::kVocabulary, memory);
  m.manifest = fresh_manifest(m.entries, disk_dtype);
  init_weights(*m.model, seed);
  return m;
}

void check_model_on_mesh(const std::string& path_or_hub_id, const std::vector<Family>& extra_families, const ParallelDims& dims,
                         const TokenSharing& sharing, const std::vector<std::string>& plan) {
  const CausalLM model(configure_model(HfConfig::load(resolve_model_path(path_or_hub_id)), extra_families), at::kFloat);
  check_mesh(model.config(), dims);
  const std::vector<nn::Parameter*> all = model.parameters();
  const ShardingPlan whole = plan_of(model.config(), dims, sharing.sequence_parallel, plan, {all.begin(), all.end()});
  for (const nn::Parameter* p : all) (void)place_parameter(whole, dims, p->name(), p->shape());
}

ExportSources export_sources(const LoadedModel& m) {
  return [&m](const std::string& name) {
    const nn::Parameter* p = m.model->find_parameter(name);
    WEFT_CHECK(p, "no parameter {}", name);
    return ExportSource{p->master(), m.mesh ? layout_of(*p, *m.mesh) : Layout()};
  };
}

ExportReport export_stream(const LoadedModel& m, std::optional<DType> dtype, const ExportOptions& options,
                           const ExportSink& sink) {
  std::vector<StoredTensor> tensors = stored_tensors(m.manifest, m.entries, m.tied_head);
  for (StoredTensor& t : tensors) t.dtype = dtype.value_or(t.dtype);
  return export_stream(tensors, export_sources(m), m.mesh.get(), options, sink);
}

void save_model_files(const LoadedModel& m, const std::string& dir) {
  static constexpr const char* kCopied[] = {"generation_config.json",
                                            "tokenizer.json",
                                            "tokenizer_config.json",
                                            "special_tokens_map.json",
                                            "chat_template.jinja",
                                            "added_tokens.json",
                                            "vocab.json",
                                            "merges.txt",
                                            "tokenizer.model"};
  for (const char* name : kCopied)
    if (fs::exists(fs::path(m.dir) / name)) fs::copy_file(fs::path(m.dir) / name, fs::path(dir) / name);
  if (fs::exists(fs::path(m.dir) / "additional_chat_templates"))
    fs::copy(fs::path(m.dir) / "additional_chat_templates", fs::path(dir) / "additional_chat_templates",
             fs::copy_options::recursive);
  std::string config = m.hf.raw_json;
  if (m.config.score_head) {  // as transformers names a trunk with this head
    auto json = nlohmann::ordered_json::parse(config);
    bool renamed = false;
    for (auto& name : json["architectures"])
      if (std::string text = name; text.ends_with("ForCausalLM")) {
        name = text.substr(0, text.size() - std::string_view("ForCausalLM").size()) + "ForSequenceClassification";
        renamed = true;
      }
    json["id2label"] = {{"0", "LABEL_0"}};  // one label
    json["label2id"] = {{"LABEL_0", 0}};
    if (renamed) config = json.dump(2);
  }
  write_file_atomically((fs::path(dir) / "config.json").string(), config);
}

void save_model(const LoadedModel& m, const std::string& dir) {
  WEFT_CHECK(!m.mesh, "save_model of a part");
  save_model_files(m, dir);
  save_hf_weights(dir, m.manifest, m.entries, m.tied_head,
                  [&](const std::string& name) { return whole_parameter(m.model->find_parameter(name)->master()); });
}

}  // namespace weft
