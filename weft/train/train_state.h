#pragma once
// Checkpoints of a run: runs/NAME/checkpoints/global_step_N/{huggingface/, state/, manifest.json}, made whole or not at all, and
// `latest`, written last. state/ holds what a bit-equal resume needs: fp32 masters, optimizer moments, progress, and the step
// that was under way.
//
// All functions but clean_checkpoints are collective over the model's mesh. Each rank writes its parts and reads its parts, out
// of a directory that all see; where they do not (which is found out each time), rank 0 writes and reads for the others, one
// tensor at a time. An error of one rank is thrown on all.

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
  std::string command;  // "train" or "sft": the one does not go on from the other's
  int64_t step = 0;     // completed steps
  int64_t updates = 0;  // optimizer updates
  int64_t weight_version = 0;
  DatasetCursor cursor;  // before the step under way, if there is one
  uint64_t dataset_fingerprint = 0;
  std::map<std::string, double> values;  // small state of the algorithm (adaptive KL coefficient)
  std::optional<StepUnderWay> under_way;
};

// Tensor bytes of the files that this rank wrote or read.
struct CheckpointIo {
  int64_t bytes = 0;
  bool by_all_ranks = true;  // false: by rank 0 for the others
};

// Keeps max_keep checkpoints (< 1: all) and `spare` (prune_checkpoints). An existing directory of that step is replaced. Errors
// leave what was there before. Beside the tensors of the run a rank holds one piece of at most 4 MiB.
void save_checkpoint(const std::string& checkpoints_dir, const LoadedModel& model, const Optimizer& optimizer,
                     const TrainProgress& progress, int64_t max_keep, CheckpointIo* io = nullptr, const std::string& spare = {});

// The newest complete checkpoint, of which `latest` tells rank 0; nullopt where there is none. FileError where it names what is
// not complete. Collective over `all`; null: one rank.
std::optional<std::string> latest_checkpoint(const std::string& checkpoints_dir, const Communicator* all = nullptr);

// Restores masters, moments and progress into a model and optimizer built the same way, on any mesh. Sizes of all files and
// hashes of what is read are checked; checkpoints of format 1 have none. FileError for what is damaged or does not fit the model.
// `command`: who asks, "train" or "sft".
// Progress alone, for all ranks of a job, some of which are not the model's; collective over `all`.
TrainProgress load_progress(const std::string& checkpoint_dir, const std::string& command, const Communicator* all);
TrainProgress load_checkpoint(const std::string& checkpoint_dir, const std::string& command, const LoadedModel& model,
                              Optimizer& optimizer, CheckpointIo* io = nullptr);

// The fp32 masters alone, checked as above, of a checkpoint of any command; returns its step.
int64_t load_masters(const std::string& checkpoint_dir, const LoadedModel& model);

// After a save that was killed: finishes what was complete, removes what was not; what the file system refuses is a warning. One
// process, while no other saves.
void clean_checkpoints(const std::string& checkpoints_dir);

}  // namespace weft
