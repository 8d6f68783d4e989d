#pragma once
// Checkpoints of a run: runs/NAME/checkpoints/global_step_N/{huggingface/, state/}, made whole or not at all, and `latest`, written
// last. state/ holds what a bit-equal resume needs: fp32 masters, optimizer moments, progress, and the step that was under way.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/io/dataset.h"
#include "weft/io/trajectory.h"
#include "weft/train/loaded_model.h"
#include "weft/train/optimizer.h"

namespace weft {

// A step that a signal stopped between its updates. Everything its remaining updates read.
struct StepUnderWay {
  std::vector<Trajectory> trajectories;           // rewards included
  std::vector<std::vector<float>> old_log_probs;  // [trajectory][response]
  std::vector<std::vector<float>> ref_log_probs;  // empty without a reference
  int64_t updates_done = 0;                       // mini-batch updates of this step, epochs counted through
  std::map<std::string, double> sums;             // metric accumulators
};

struct TrainProgress {
  std::string command;         // "train" or "sft": the one does not go on from the other's
  int64_t step = 0;            // completed steps
  int64_t updates = 0;         // optimizer updates
  int64_t weight_version = 0;
  DatasetCursor cursor;        // before the step under way, if there is one
  uint64_t dataset_fingerprint = 0;
  std::map<std::string, double> values;  // small state of the algorithm (adaptive KL coefficient)
  std::optional<StepUnderWay> under_way;
};

// `step_name`: the N of global_step_N. Keeps the newest max_keep checkpoints (< 1: all). An existing directory of that step is replaced.
// Collective where the model is sharded: rank 0 writes, one tensor in memory at a time.
void save_checkpoint(const std::string& checkpoints_dir, const LoadedModel& model, const Optimizer& optimizer,
                     const TrainProgress& progress, int64_t max_keep);

// The directory that `latest` names, or nullopt where there is none. FileError where it names what is not complete.
std::optional<std::string> latest_checkpoint(const std::string& checkpoints_dir);

// Restores masters, moments and progress into a model and optimizer built the same way, on any mesh: each rank reads its parts. FileError for what does not fit.
// `command`: who asks, "train" or "sft".
TrainProgress load_checkpoint(const std::string& checkpoint_dir, const std::string& command, const LoadedModel& model, Optimizer& optimizer);

}  // namespace weft
