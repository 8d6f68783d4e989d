#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>

#include "weft/base/error.h"
#include "weft/checkpoint/manifest.h"
#include "weft/cli/command.h"
#include "weft/cli/inspect_refit.h"
#include "weft/io/atomic_file.h"
#include "weft/io/checkpoint_files.h"
#include "weft/io/hf_config.h"
#include "weft/io/hub_cache.h"
#include "weft/mesh/parallel_dims.h"
#include "weft/model/causal_lm.h"
#include "weft/model/families.h"
#include "weft/model/parallelize.h"
#include "weft/train/plan_kinds.h"

namespace weft {
namespace {

// Who would hold what: the model's table, then FSDP; fp32 master bytes of the rank that has most and least.
std::string mesh_text(const CausalLM& model, const std::string& text, const std::string& entries, bool sequence_parallel) {
  const ParallelDims dims = parse_parallel_dims(text, 0, {"oe"});
  check_mesh(model.config(), dims);
  std::vector<std::string> lines;
  std::istringstream in(entries);
  for (std::string line; std::getline(in, line, ';');) lines.push_back(line);
  const std::vector<nn::Parameter*> all = model.parameters();
  const ShardingPlan plan = plan_of(model.config(), dims, sequence_parallel, lines, {all.begin(), all.end()});
  std::vector<int64_t> bytes(static_cast<size_t>(dims.world()), 0);  // by rank
  std::map<std::string, std::vector<int64_t>> kept;                  // elements by rank, of a layout: layers repeat the same few
  std::string out = fmt::format("  {} ranks: {}\n  {:<56} {:<18} {:<32} {:<18} {:>12}  why\n", dims.world(),
                                dims.mesh().to_string(), "parameter", "shape", "placement", "rank 0 holds", "bytes");
  for (const nn::Parameter* p : all) {
    const Placement at = place_parameter(plan, dims, p->name(), p->shape());
    std::vector<std::string> cuts;
    for (const Cut& cut : at.layout.cuts())
      if (at.layout.mesh().size(cut.axis) > 1) cuts.push_back(fmt::format("{}: Shard({})", cut.axis, cut.dim));
    for (const std::string& axis : at.partial_axes) cuts.push_back(axis + ": sum of gradients");
    std::vector<int64_t>& elements = kept[at.layout.to_string()];
    if (elements.empty())
      elements = by_rank(at.layout, [](const std::vector<int64_t>& shape) {
        return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
      });
    for (size_t rank = 0; rank < bytes.size(); ++rank) bytes[rank] += elements[rank] * 4;
    out += fmt::format("  {:<56} {:<18} {:<32} {:<18} {:>12}  {}\n", p->name(), shape_text(p->shape()),
                       cuts.empty() ? "copies" : fmt::format("{}", fmt::join(cuts, ", ")), shape_text(at.layout.local_shape(0)),
                       elements[0] * 4, at.reason);
  }
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  return out +
         fmt::format("  fp32 masters a rank: {:.3f} MB (rank {}) to {:.3f} MB (rank {}); gradients as much, AdamW twice that\n",
                     static_cast<double>(*least) / 1e6, least - bytes.begin(), static_cast<double>(*most) / 1e6,
                     most - bytes.begin());
}

// The weights' directory: of a run's checkpoint, every byte of which is held to its manifest first, the one in it.
// `told`: a line about that.
std::string weights_directory(const std::string& given, std::string* told) {
  const std::string path = given + "/" + kManifestName;
  if (!std::filesystem::exists(path)) return resolve_model_path(given);
  const CheckpointManifest manifest = parse_manifest(read_text_file(path), path);
  const int64_t bytes = check_everything(manifest, given);
  *told = fmt::format("{}: {} files, {:.1f} MB, sizes and hashes are those of {}\n", given, manifest.files.size(),
                           static_cast<double>(bytes) / 1e6, kManifestName);
  return given + "/huggingface";
}

}  // namespace

Command inspect_command() {
  return {
      "inspect",
      "What a checkpoint is: family, shapes, parameters, tensors on disk. Of a run's global_step_N also whether a byte of it "
      "has changed.",
      "DIR | refit TRAIN_MESH ROLLOUT_MESH --model CONFIG",
      [] {
        std::vector<Option> options = {
            {"--tensors", "", "list every tensor with dtype, shape and file"},
            {"--mesh", "MESH",
             "what each rank would hold of every parameter, and why it is cut there: fsdp=4,tp=2,ep=8; needs config.json only"},
            {"--plan", "ENTRIES", "with --mesh: entries as in actor.plan, with ; between them"},
            {"--sequence-parallel", "", "with --mesh: as actor.sequence_parallel"}};
        for (Option& o : inspect_refit_options()) options.push_back(std::move(o));
        return options;
      }(),
      "weft inspect models/tiny-moe",
      1,
      3,
      [](const Arguments& args, const Registry& registry) -> int {
        if (args.positional.size() == 3 && args.positional[0] == "refit") return inspect_refit(args, registry);
        if (args.positional.size() > 1)
          throw UsageError(fmt::format("weft inspect: unexpected argument '{}'; expected DIR, or refit TRAIN_MESH ROLLOUT_MESH",
                                       args.positional[1]));
        for (const Option& o : inspect_refit_options())
          if (args.has(o.name)) throw UsageError(o.name + " belongs to weft inspect refit TRAIN_MESH ROLLOUT_MESH");
        if (!args.has("--mesh") && (args.has("--plan") || args.has("--sequence-parallel")))
          throw UsageError("--plan and --sequence-parallel belong to --mesh");
        std::string told;
        const std::string dir = weights_directory(args.positional[0], &told);
        const HfConfig hf = HfConfig::load(dir);
        const ModelConfig c = configure_model(hf, registry.families);
        const CausalLM model(c, at::kFloat);
        // Before anything is printed: a mesh that does not fit is an error alone.
        const std::string placement =
            args.has("--mesh") ? mesh_text(model, args.get("--mesh"), args.get("--plan", ""), args.has("--sequence-parallel"))
                               : "";
        // A directory with config.json alone is enough to plan with.
        std::optional<Checkpoint> disk;
        if (!args.has("--mesh") || has_weights(dir)) disk.emplace(dir);
        std::cout << told << fmt::format("{}: {}\n", dir, c.family);
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
            std::cout << fmt::format("  {:<60} {:<9} [{}]  {}\n", t.name, dtype_name(t.dtype), fmt::join(t.shape, ", "), t.file);
        std::cout << placement;
        return kExitDone;
      }};
}

}  // namespace weft
