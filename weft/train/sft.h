#pragma once
// `weft sft`: next-token training on rows with loss masks, one optimizer update a step of data.train_batch_size rows.

#include <memory>
#include <optional>

#include "weft/base/progress.h"
#include "weft/train/loaded_model.h"
#include "weft/train/metrics.h"
#include "weft/train/optimizer.h"
#include "weft/train/recipe.h"
#include "weft/train/registry.h"
#include "weft/train/run_dir.h"
#include "weft/train/sft_data.h"
#include "weft/train/train_state.h"

namespace weft {

class SftTrainer {
 public:
  SftTrainer(Recipe recipe, const Registry& registry);

  // Runs to the end. StoppedError after a signal, once everything is saved.
  void run();

 private:
  void step();
  double validation_loss();
  void save();

  Recipe recipe_;
  LoadedModel model_;
  Tokenizer tokenizer_;
  std::unique_ptr<SftSource> train_, val_;
  std::unique_ptr<DatasetSampler> sampler_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<RunDir> run_dir_;
  std::unique_ptr<Progress> bar_;
  TrainProgress progress_;
  int64_t total_steps_ = 0;
};

}  // namespace weft
