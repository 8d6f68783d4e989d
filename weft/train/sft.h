#pragma once
// `weft sft`: next-token training on rows with loss masks, one optimizer update a step of data.train_batch_size rows. The ranks
// of a mesh share the rows; parameters, gradients and optimizer state are sharded.

#include <memory>
#include <optional>

#include "weft/base/progress.h"
#include "weft/train/data_parallel.h"
#include "weft/train/job.h"
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
  // `mesh` null: one rank. Else every rank of the mesh makes the same calls.
  SftTrainer(Recipe recipe, const Registry& registry, std::shared_ptr<const RankMesh> mesh = nullptr);

  // Runs to the end. StoppedError after a signal, once everything is saved.
  void run();

 private:
  void step();
  double validation_loss();
  std::string checkpoints() const { return recipe_.run_dir() + "/checkpoints"; }
  void save();

  Recipe recipe_;
  DataParallel ranks_;
  Job job_;
  LoadedModel model_;
  Tokenizer tokenizer_;
  std::unique_ptr<SftSource> train_, val_;
  std::unique_ptr<DatasetSampler> sampler_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<RunDir> run_dir_;  // rank 0
  std::unique_ptr<Progress> bar_;    // rank 0
  TrainProgress progress_;
  int64_t total_steps_ = 0;
};

}  // namespace weft
