#pragma once
// A Hugging Face checkpoint made of a run's sharded state, or of another Hugging Face checkpoint (docs/checkpoints.md).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/checkpoint/hf_weights.h"
#include "weft/model/families.h"
#include "weft/parallel/rank_mesh.h"

namespace weft {

struct ConvertSource {
  std::string model;       // the directory with config.json, tokenizer, and which tensors there are
  std::string checkpoint;  // global_step_N, whose state/ has the weights; empty: they are the model's
};

// `path`: a run's global_step_N, its run directory, its checkpoints/ or checkpoints/latest (then the newest complete one), or a
// Hugging Face directory or hub id. FileError for what is none of these, and for a checkpoint that is not complete.
ConvertSource find_convert_source(const std::string& path);

struct ConvertOptions {
  std::optional<DType> dtype;  // float32 or bfloat16, for all tensors; nullopt: those of source.model
  int64_t max_shard_bytes = kMaxShardBytes;
  bool overwrite = false;  // an `out` that is there: only if it is a model's directory, or empty
  std::function<void(int64_t done, int64_t of)> progress = {};  // tensors; on rank 0
};

struct ConvertReport {
  int64_t tensors = 0, files = 0, bytes = 0;  // of tensors
  std::optional<int64_t> step;                // of a run's state
};

// UsageError for an output that is there or lies in what is read, or holds it. No communication.
void check_convert_output(const ConvertSource& source, const std::string& out, bool overwrite);

// Writes `out` (whole or not at all) from rank 0, to which the others stream. Collective over the mesh; null: one rank. Each rank
// holds its fp32 masters, rank 0 one tensor besides. StoppedError when a signal came; errors of any rank are thrown on all.
ConvertReport convert_checkpoint(const ConvertSource& source, const std::string& out, const ConvertOptions& options,
                                 const std::vector<Family>& extra_families = {}, std::shared_ptr<const RankMesh> mesh = nullptr);

}  // namespace weft
