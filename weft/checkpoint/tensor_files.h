#pragma once
// Tensor files that the ranks of a mesh write together: planned alike on every rank, created by one at their full size, then each
// rank writes what it has at its place.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weft/checkpoint/parameter_part.h"
#include "weft/io/safetensors.h"

namespace weft {

// A tensor on disk, rounded from the fp32 parameter that `entry` names to `dtype`.
struct StoredTensor {
  WeightEntry entry;
  DType dtype = DType::kF32;
};

struct TensorFile {
  std::string path;  // below the directory that is written
  SafetensorsPlan plan;
  std::vector<StoredTensor> tensors;  // of plan.tensors, in that order
};

TensorFile plan_tensor_file(const std::string& path, std::vector<StoredTensor> tensors);
// DIR/model*.safetensors; `index`: the text of their index, empty where there is one file.
std::vector<TensorFile> plan_sharded_tensor_files(const std::string& dir, const std::vector<StoredTensor>& tensors,
                                                  int64_t max_shard_bytes, std::string* index);

// One rank, before any writes; the folders are there. SystemError.
void create_tensor_files(const std::string& root, const std::vector<TensorFile>& files);

// What a rank writes of a tensor: elements that nobody else writes (mesh/single_writer.h).
using PartToWrite = std::function<ParameterPart(const WeightEntry&)>;

struct WrittenParts {
  int64_t bytes = 0;
  std::vector<uint64_t> hashes;  // of this rank's parts, one a tensor: files in order, tensors in the order of the file
};
// Any number of ranks at once. What it holds beside the parts is one piece (for_each_piece). Synced when it returns. SystemError.
WrittenParts write_parts(const std::string& root, const std::vector<TensorFile>& files, const PartToWrite& part);

}  // namespace weft
