#include "weft/cli/inspect_refit.h"

#include <iostream>

#include "weft/base/error.h"
#include "weft/cli/config_file.h"
#include "weft/train/refit_listing.h"

namespace weft {

std::vector<Option> inspect_refit_options() {
  return {{"--model", "CONFIG", "with refit: config.json, or a directory that has one; no weights are needed"},
          {"--train-ranks", "RANKS",
           "with refit: as actor.ranks: 0-3. Without ranks both roles have the same, or where the meshes have "
           "other sizes the rollout's stand behind the trainer's"},
          {"--rollout-ranks", "RANKS", "with refit: as rollout.ranks: 4-7"},
          {"--rollout-dtype", "DTYPE", "with refit: bfloat16 (default), float32 or int8"},
          {"--watermark-mb", "N", "with refit: as refit.watermark_mb (default 64)"},
          {"--name", "PATTERN", "with refit: transfers of these tensors only: '*.experts.*'"},
          {"--limit", "N", "with refit: at most so many transfers (default 40; 0: all)"},
          {"--json", "", "with refit: print JSON: names end in their units"}};
}

int inspect_refit(const Arguments& args, const Registry& registry) {
  if (!args.has("--model"))
    throw UsageError(
        "weft inspect refit needs --model CONFIG; for example: weft inspect refit fsdp=4 dp=1,tp=4 --model models/tiny-moe");
  for (const char* other : {"--tensors", "--mesh", "--plan", "--sequence-parallel"})
    if (args.has(other)) throw UsageError(fmt::format("{} belongs to weft inspect DIR, not to weft inspect refit", other));
  RefitListingOptions options;
  options.rollout_dtype = dtype_option(args, "--rollout-dtype", options.rollout_dtype, /*int8=*/true);
  options.watermark = args.get_int("--watermark-mb", options.watermark / 1'000'000, 1) * 1'000'000;
  options.train_ranks = args.get("--train-ranks"), options.rollout_ranks = args.get("--rollout-ranks");
  RefitListingView view;
  view.name = args.get("--name", view.name);
  view.limit = args.get_int("--limit", view.limit);
  for (const std::string& mesh : {args.positional[1], args.positional[2]})
    if (mesh.empty()) throw UsageError("weft inspect refit: a mesh is empty; fsdp=1 and dp=1 are those of one rank");
  const ParameterTable table = parameter_table(config_file(args.get("--model")), false, registry.families);
  const RefitListing listing = list_refit(table, args.positional[1], args.positional[2], options);
  std::cout << (args.has("--json") ? refit_listing_json(listing, view) : refit_listing_text(listing, view));
  return kExitDone;
}

}  // namespace weft
