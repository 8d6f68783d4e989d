#pragma once
// Tensor files that the ranks of a mesh write together: planned alike on every rank, created by one at their full size, then each
// rank writes what it has at its place.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/checkpoint/parameter_part.h"
#include "weft/io/safetensors.h"

namespace weft {

class PositionedFile;

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

struct WrittenParts {
  int64_t bytes = 0;
  std::vector<uint64_t> hashes;  // of this rank's parts, one a tensor: files in order, tensors in the order of the file
};

// A rank's hand on the files: it is given what the rank has of one tensor after another. Any number of ranks at once, of elements
// that nobody else writes (mesh/single_writer.h). What it holds beside the parts is one piece (for_each_piece). SystemError.
class PartWriter {
 public:
  // `files` live as long as this.
  PartWriter(std::string root, const std::vector<TensorFile>& files);
  ~PartWriter();

  // Of the next tensor: files in order, tensors in the order of the file. A part may be fp32, or rounded already.
  void write(const ParameterPart& part);
  // After the last. All is synced.
  WrittenParts finish();

 private:
  void leave_file();

  std::string root_;
  const std::vector<TensorFile>& files_;
  size_t file_ = 0, tensor_ = 0;  // the next
  std::unique_ptr<PositionedFile> open_;
  WrittenParts written_;
};

// What a rank writes of a tensor.
using PartToWrite = std::function<ParameterPart(const WeightEntry&)>;
WrittenParts write_parts(const std::string& root, const std::vector<TensorFile>& files, const PartToWrite& part);
// The tensors in the order in which a PartWriter takes them.
std::vector<StoredTensor> tensors_in(const std::vector<TensorFile>& files);

}  // namespace weft
