#include "weft/train/convert.h"

#include <algorithm>
#include <iostream>
#include <optional>

#include "weft/base/error.h"
#include "weft/base/progress.h"
#include "weft/base/signals.h"
#include "weft/cli/command.h"
#include "weft/cli/mesh_option.h"
#include "weft/comm/launch_env.h"

namespace weft {
namespace {

// "5GB", "500MB", "20KB", "20MiB", or bytes.
int64_t size_of(const std::string& text) {
  static const std::vector<std::pair<std::string, int64_t>> kUnits = {{"KiB", int64_t{1} << 10},
                                                                      {"MiB", int64_t{1} << 20},
                                                                      {"GiB", int64_t{1} << 30},
                                                                      {"TiB", int64_t{1} << 40},
                                                                      {"KB", 1000},
                                                                      {"MB", 1000 * 1000},
                                                                      {"GB", 1000 * 1000 * 1000},
                                                                      {"TB", int64_t{1000} * 1000 * 1000 * 1000}};
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  int64_t unit = text.size() == digits ? 1 : 0, size = 0;
  for (const auto& [name, bytes] : kUnits)
    if (text.substr(digits) == name) unit = bytes;
  if (digits == 0 || digits > 15 || unit == 0 || __builtin_mul_overflow(std::stoll(text.substr(0, digits)), unit, &size) ||
      size < 1)
    throw UsageError(fmt::format("--max-shard-size {}: expected a size such as 5GB, 500MB or 64MiB", text));
  return size;
}

}  // namespace

Command convert_command() {
  return {"convert",
          "Writes a Hugging Face checkpoint from a run's state (its fp32 masters) or from another checkpoint, in a dtype.",
          "CHECKPOINT OUT",
          {{"--dtype", "DTYPE",
            "float32, bfloat16, or auto (default): as the checkpoint's huggingface/, or the checkpoint, has them"},
           {"--max-shard-size", "SIZE", "files are at most so large, if a tensor allows (default 5GB; 500MB, 64MiB)"},
           {"--overwrite", "", "replace OUT if it is a model's directory"},
           {"--mesh", "MESH", "share the memory between these ranks, threads or the processes of mpirun: fsdp=4"}},
          "weft convert runs/demo models/demo-fp32 --dtype float32",
          2,
          2,
          [](const Arguments& args, const Registry& registry) -> int {
            ConvertOptions options;
            const std::string dtype = args.get("--dtype", "auto"), out = args.positional[1];
            if (dtype != "auto") options.dtype = parse_dtype(dtype);
            if (dtype != "auto" && options.dtype != DType::kF32 && options.dtype != DType::kBF16)
              throw UsageError(fmt::format("--dtype {}: expected float32, bfloat16 or auto", dtype));
            if (args.has("--max-shard-size")) options.max_shard_bytes = size_of(args.get("--max-shard-size"));
            options.overwrite = args.has("--overwrite");
            if (const LaunchWorld launched = read_launch(launch_environment());
                launched.mpi && launched.size != 1 && !args.has("--mesh"))
              throw UsageError(
                  fmt::format("weft convert on several ranks needs --mesh, for example fsdp={}", std::max(2, launched.size)));
            const ConvertSource source = find_convert_source(args.positional[0]);
            check_convert_output(source, out, options.overwrite);
            install_stop_signals();
            ConvertReport report;
            const bool main = on_mesh_option(args, source.model, registry, {}, 1, [&](std::shared_ptr<const RankMesh> mesh) {
              ConvertOptions mine = options;
              std::optional<Progress> bar;
              mine.progress = [&](int64_t done, int64_t of) {
                if (!bar) bar.emplace("convert", of, "tensors");
                bar->update(done);
              };
              const ConvertReport r = convert_checkpoint(source, out, mine, registry.families, mesh);
              if (bar) bar->finish();
              if (!mesh || mesh->rank() == 0) report = r;
            });
            if (main)
              std::cout << fmt::format(
                  "{}: {} tensors, {:.1f} MB in {} {}, from {}\n", out, report.tensors, static_cast<double>(report.bytes) / 1e6,
                  report.files, report.files == 1 ? "file" : "files",
                  report.step ? fmt::format("the fp32 masters of step {} in {}", *report.step, source.checkpoint) : source.model);
            return kExitDone;
          }};
}

}  // namespace weft
