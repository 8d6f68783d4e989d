#pragma once
// The directory of a run: recipe.toml (resolved), metrics.jsonl, tensorboard/, samples/STEP.jsonl, checkpoints/, report.html.
// Beside them each rank has logs/rank_N.log (base/log.h).

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/train/generate.h"
#include "weft/train/metrics.h"
#include "weft/train/recipe.h"

namespace weft {

class RunDir {
 public:
  // Creates it (parents too), writes recipe.toml, opens metrics and events, and removes what a killed save left. `resume_step`: the step
  // of the checkpoint gone on from; a recipe that changed since is told. UsageError where another process runs in it.
  RunDir(const Recipe& recipe, std::optional<int64_t> resume_step);
  ~RunDir();

  const std::string& path() const { return path_; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  void write_metrics(int64_t step, const MetricsRow& row);
  // samples/STEP.jsonl in verl's fields (input, output, gts, score, step) with ids, log-probs and finish reasons.
  void write_samples(int64_t step, const PromptSource& source, const std::vector<Prompt>& prompts,
                     const std::vector<ScoredSample>& samples, const Tokenizer& tokenizer);
  void write_report();

 private:
  std::string path_;
  int lock_ = -1;
  std::unique_ptr<MetricsLog> metrics_;
};

}  // namespace weft
