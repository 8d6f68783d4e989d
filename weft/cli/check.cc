#include <filesystem>
#include <iostream>

#include "weft/base/error.h"
#include "weft/base/threads.h"
#include "weft/cli/command.h"
#include "weft/train/check.h"

namespace weft {

Command check_command() {
  return {"check",
          "Holds a checkpoint against a golden file made with transformers (tools/make_golden.py): logits, gradients, routes, tokens.",
          "DIR",
          {{"--golden", "FILE", "the golden; default: DIR/golden.safetensors"},
           {"--param-dtype", "DTYPE", "float32 (default) or bfloat16"},
           {"--all", "", "list every gradient"},
           {"--threads", "N", "threads; default: all cores"},
           {"--device", "NAME", "cpu (default) or cuda"}},
          "weft check path/to/checkpoint",
          1,
          1,
          [](const Arguments& args, const Registry& registry) -> int {
            set_num_threads(static_cast<int>(args.get_int("--threads", 0)));
            const auto dtype = parse_dtype(args.get("--param-dtype", "float32"));
            if (!dtype) throw UsageError(fmt::format("--param-dtype {}: expected float32 or bfloat16", args.get("--param-dtype")));
            LoadedModel m = load_model(args.positional[0], dtype, args.get("--device", "cpu"), registry.families);
            CheckOptions options;
            if (*dtype == DType::kBF16) options = bf16_check_options();
            const std::string golden = args.get("--golden", (std::filesystem::path(m.dir) / "golden.safetensors").string());
            const CheckReport report = check_model(m, golden, options);
            std::cout << report.table(args.has("--all"));
            return report.ok() ? kExitDone : kExitFailed;
          }};
}

}  // namespace weft
