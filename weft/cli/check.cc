#include <filesystem>
#include <iostream>

#include "weft/base/error.h"
#include "weft/base/threads.h"
#include "weft/cli/command.h"
#include "weft/cli/mesh_option.h"
#include "weft/comm/launch.h"
#include "weft/mesh/token_sharing.h"
#include "weft/train/check.h"

namespace weft {

Command check_command() {
  return {"check",
          "Holds a checkpoint against a golden file made with transformers (tools/make_golden.py): logits, gradients, routes, "
          "tokens.",
          "DIR",
          {{"--golden", "FILE", "the golden; default: DIR/golden.safetensors"},
           {"--param-dtype", "DTYPE", "float32 (default) or bfloat16"},
           {"--all", "", "list every gradient"},
           {"--mesh", "MESH", "on these ranks, threads or the processes of mpirun: fsdp=2,tp=2,ep=4"},
           {"--sequence-parallel", "", "with --mesh: as actor.sequence_parallel"},
           {"--cp-split", "NAME", "with --mesh: zigzag (default) or contiguous"},
           {"--threads", "N", "threads of a rank; default: all cores, or a rank's share of them"},
           {"--device", "NAME", "cpu (default) or cuda"}},
          "weft check path/to/checkpoint",
          1,
          1,
          [](const Arguments& args, const Registry& registry) -> int {
            set_num_threads(static_cast<int>(args.get_int("--threads", 0)));
            const auto dtype = parse_dtype(args.get("--param-dtype", "float32"));
            if (!dtype)
              throw UsageError(fmt::format("--param-dtype {}: expected float32 or bfloat16", args.get("--param-dtype")));
            CheckOptions options;
            if (*dtype == DType::kBF16) options = bf16_check_options();
            const auto check = [&](std::shared_ptr<const RankMesh> mesh) {
              LoadedModel m = load_model(args.positional[0], dtype, args.get("--device", "cpu"), registry.families, mesh);
              return check_model(m, args.get("--golden", (std::filesystem::path(m.dir) / "golden.safetensors").string()),
                                 options);
            };
            if (!args.has("--mesh") && (args.has("--sequence-parallel") || args.has("--cp-split")))
              throw UsageError("--sequence-parallel and --cp-split belong to --mesh");
            const TokenSharing sharing{parse_context_split(args.get("--cp-split", "zigzag"), "--cp-split"),
                                       args.has("--sequence-parallel")};
            CheckReport report;
            const bool main =
                on_mesh_option(args, args.positional[0], registry, sharing, static_cast<int>(args.get_int("--threads", 0)),
                               [&](std::shared_ptr<const RankMesh> mesh) {
                                 CheckReport mine = check(mesh);
                                 if (!mesh || mesh->rank() == 0 || launch_world().mpi) report = std::move(mine);
                               });
            if (main) std::cout << report.table(args.has("--all"));
            return report.ok() ? kExitDone : kExitFailed;
          }};
}

}  // namespace weft
