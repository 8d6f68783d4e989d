#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>

#include "weft/base/error.h"
#include "weft/checkpoint/manifest.h"
#include "weft/cli/command.h"
#include "weft/io/atomic_file.h"
#include "weft/io/checkpoint_files.h"
#include "weft/io/hf_config.h"
#include "weft/io/hub_cache.h"
#include "weft/mesh/parallel_dims.h"
#include "weft/model/causal_lm.h"
#include "weft/model/families.h"
#include "weft/model/parallelize.h"

namespace weft {
namespace {

// Who would hold what: the model's table, then FSDP; fp32 master bytes of the rank that has most and least.
void print_mesh(const CausalLM& model, const std::string& text, const std::string& entries, bool sequence_parallel) {
  const ParallelDims dims = parse_parallel_dims(text, 0, {"oe"});
  check_mesh(model.config(), dims);
  std::vector<std::string> lines;
  std::istringstream in(entries);
  for (std::string line; std::getline(in, line, ';');) lines.push_back(line);
  const std::vector<nn::Parameter*> all = model.parameters();
  const ShardingPlan plan = plan_of(model.config(), dims, sequence_parallel, lines, {all.begin(), all.end()});
  std::map<int64_t, int64_t> bytes;  // by rank
  std::cout << fmt::format("  {} ranks: {}\n  {:<56} {:<18} {:<32} {:<18} {:>12}  why\n", dims.world(), dims.mesh().to_string(),
                           "parameter", "shape", "placement", "rank 0 holds", "bytes");
  for (const nn::Parameter* p : all) {
    const Placement at = place_parameter(plan, dims, p->name(), p->shape());
    std::vector<std::string> cuts;
    for (const Cut& cut : at.layout.cuts())
      if (at.layout.mesh().size(cut.axis) > 1) cuts.push_back(fmt::format("{}: Shard({})", cut.axis, cut.dim));
    for (const std::string& axis : at.partial_axes) cuts.push_back(axis + ": sum of gradients");
    for (int64_t rank : at.layout.mesh().ranks()) bytes[rank] += at.layout.numel(rank) * 4;
    std::cout << fmt::format("  {:<56} {:<18} {:<32} {:<18} {:>12}  {}\n", p->name(), shape_text(p->shape()),
                             cuts.empty() ? "copies" : fmt::format("{}", fmt::join(cuts, ", ")),
                             shape_text(at.layout.local_shape(0)), at.layout.numel(0) * 4, at.reason);
  }
  const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto least = std::min_element(bytes.begin(), bytes.end(), less),
             most = std::max_element(bytes.begin(), bytes.end(), less);
  std::cout << fmt::format(
      "  fp32 masters a rank: {:.3f} MB (rank {}) to {:.3f} MB (rank {}); gradients as much, AdamW twice that\n",
      static_cast<double>(least->second) / 1e6, least->first, static_cast<double>(most->second) / 1e6, most->first);
}

// The weights' directory: of a run's checkpoint, every byte of which is held to its manifest first, the one in it.
std::string weights_directory(const std::string& given) {
  const std::string path = given + "/" + kManifestName;
  if (!std::filesystem::exists(path)) return resolve_model_path(given);
  const CheckpointManifest manifest = parse_manifest(read_text_file(path), path);
  const int64_t bytes = check_everything(manifest, given);
  std::cout << fmt::format("{}: {} files, {:.1f} MB, sizes and hashes are those of {}\n", given, manifest.files.size(),
                           static_cast<double>(bytes) / 1e6, kManifestName);
  return given + "/huggingface";
}

}  // namespace

Command inspect_command() {
  return {"inspect",
          "What a checkpoint is: family, shapes, parameters, tensors on disk. Of a run's global_step_N also whether a byte of it "
          "has changed.",
          "DIR",
          {{"--tensors", "", "list every tensor with dtype, shape and file"},
           {"--mesh", "MESH",
            "what each rank would hold of every parameter, and why it is cut there: fsdp=4,tp=2,ep=8; needs config.json only"},
           {"--plan", "ENTRIES", "with --mesh: entries as in actor.plan, with ; between them"},
           {"--sequence-parallel", "", "with --mesh: as actor.sequence_parallel"}},
          "weft inspect models/tiny-moe",
          1,
          1,
          [](const Arguments& args, const Registry& registry) -> int {
            if (!args.has("--mesh") && (args.has("--plan") || args.has("--sequence-parallel")))
              throw UsageError("--plan and --sequence-parallel belong to --mesh");
            const std::string dir = weights_directory(args.positional[0]);
            const HfConfig hf = HfConfig::load(dir);
            const ModelConfig c = configure_model(hf, registry.families);
            const CausalLM model(c, at::kFloat);
            // A directory with config.json alone is enough to plan with.
            std::optional<Checkpoint> disk;
            if (!args.has("--mesh") || has_weights(dir)) disk.emplace(dir);
            std::cout << fmt::format("{}: {}\n", dir, c.family);
            std::cout << fmt::format(
                "  {} layers ({} of them MoE), hidden {}, {} query and {} key/value heads of {}, vocabulary {}{}\n", c.num_layers,
                c.moe_layer_ids().size(), c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.vocab_size,
                c.tied ? ", tied head" : "");
            if (c.has_moe())
              std::cout << fmt::format("  {} experts, top {}, of width {}\n", c.moe.num_experts, c.moe.top_k,
                                       c.moe.intermediate_size);
            std::cout << fmt::format("  {:.3f} M parameters; ", static_cast<double>(model.num_parameters()) / 1e6)
                      << (disk ? fmt::format("{} tensors, {:.1f} MB in {} files\n", disk->tensors().size(),
                                             static_cast<double>(disk->total_bytes()) / 1e6, disk->files().size())
                               : "no weights here, config.json only\n");
            if (args.has("--tensors") && disk)
              for (const TensorInfo& t : disk->tensors())
                std::cout << fmt::format("  {:<60} {:<9} [{}]  {}\n", t.name, dtype_name(t.dtype), fmt::join(t.shape, ", "),
                                         t.file);
            if (args.has("--mesh"))
              print_mesh(model, args.get("--mesh"), args.get("--plan", ""), args.has("--sequence-parallel"));
            return kExitDone;
          }};
}

}  // namespace weft
