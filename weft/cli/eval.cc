#include <filesystem>
#include <iostream>

#include "weft/base/progress.h"
#include "weft/base/random.h"
#include "weft/base/signals.h"
#include "weft/base/threads.h"
#include "weft/cli/command.h"
#include "weft/train/evaluate.h"
#include "weft/train/trainer.h"

namespace weft {

Command eval_command() {
  return {"eval",
          "Generates and scores a recipe's data.val_files with a checkpoint; prints the metrics as JSON.",
          "RECIPE [section.key=value ...]",
          {{"--model", "DIR", "checkpoint to evaluate; default: the recipe's model.path"}},
          "weft eval recipe.toml --model runs/NAME/checkpoints/global_step_40/huggingface rollout.val_kwargs.n=4",
          1,
          SIZE_MAX,
          [](const Arguments& args, const Registry& registry) -> int {
            std::vector<std::string> overrides(args.positional.begin() + 1, args.positional.end());
            if (args.has("--model")) overrides.push_back("model.path=" + args.get("--model"));
            const Recipe recipe = load_recipe(args.positional[0], overrides, RecipeUse::kEval);
            if (recipe.data.val_files.empty()) throw UsageError("weft eval: data.val_files is empty: there is nothing to evaluate");
            set_num_threads(static_cast<int>(recipe.trainer.threads));
            install_stop_signals();
            const std::optional<DType> dtype = recipe.actor.param_dtype == "auto" ? std::nullopt : parse_dtype(recipe.actor.param_dtype);
            LoadedModel model = load_model(recipe.model.path, dtype, recipe.trainer.device, registry.families);
            const Tokenizer tokenizer = Tokenizer::load(model.dir);
            const PromptSource source(recipe.data.val_files, recipe, tokenizer, recipe.data.val_max_samples);
            const auto rewards = make_rewards(recipe, registry);
            const auto engine = make_engine(recipe, model, *model.model, tokenizer, false);
            const SamplingParams params = validation_params(recipe);
            Progress bar("eval", static_cast<int64_t>(source.rows().size()) * params.n, "samples");
            const Evaluation e = evaluate({engine.get()}, Job(), source, *rewards, tokenizer, params,
                                          hash_combine(static_cast<uint64_t>(recipe.rollout.seed), uint64_t{0x76616c}),
                                          [&](int64_t done, int64_t) { bar.update(done); });
            bar.finish();
            std::string out;
            for (const auto& [name, value] : e.metrics.entries()) out += fmt::format("{}  \"{}\": {}", out.empty() ? "" : ",\n", name, value);
            std::cout << "{\n" << out << "\n}\n";
            return kExitDone;
          }};
}

}  // namespace weft
