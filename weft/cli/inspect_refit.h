#pragma once
// `weft inspect refit A B --model CONFIG`: a part of the inspect command.

#include "weft/cli/command.h"

namespace weft {

// Its options, besides those of inspect.
std::vector<Option> inspect_refit_options();
// `args.positional` is "refit", a trainer's mesh and a rollout's.
int inspect_refit(const Arguments& args, const Registry& registry);

}  // namespace weft
