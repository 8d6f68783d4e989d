#include <iostream>

#include "weft/cli/command.h"
#include "weft/io/checkpoint_files.h"
#include "weft/io/hf_config.h"
#include "weft/io/hub_cache.h"
#include "weft/model/causal_lm.h"
#include "weft/model/families.h"

namespace weft {

Command inspect_command() {
  return {"inspect",
          "What a checkpoint is: family, shapes, parameters, tensors on disk.",
          "DIR",
          {{"--tensors", "", "list every tensor with dtype, shape and file"}},
          "weft inspect models/tiny-moe",
          1,
          1,
          [](const Arguments& args, const Registry& registry) -> int {
            const std::string dir = resolve_model_path(args.positional[0]);
            const HfConfig hf = HfConfig::load(dir);
            const ModelConfig c = configure_model(hf, registry.families);
            const CausalLM model(c, at::kFloat);
            const Checkpoint disk(dir);
            std::cout << fmt::format("{}: {}\n", dir, c.family);
            std::cout << fmt::format("  {} layers ({} of them MoE), hidden {}, {} query and {} key/value heads of {}, vocabulary {}{}\n", c.num_layers,
                                     c.moe_layer_ids().size(), c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.vocab_size,
                                     c.tied ? ", tied head" : "");
            if (c.has_moe())
              std::cout << fmt::format("  {} experts, top {}, of width {}\n", c.moe.num_experts, c.moe.top_k, c.moe.intermediate_size);
            std::cout << fmt::format("  {:.3f} M parameters; {} tensors, {:.1f} MB in {} files\n", static_cast<double>(model.num_parameters()) / 1e6,
                                     disk.tensors().size(), static_cast<double>(disk.total_bytes()) / 1e6, disk.files().size());
            if (args.has("--tensors"))
              for (const TensorInfo& t : disk.tensors())
                std::cout << fmt::format("  {:<60} {:<9} [{}]  {}\n", t.name, dtype_name(t.dtype), fmt::join(t.shape, ", "), t.file);
            return kExitDone;
          }};
}

}  // namespace weft
