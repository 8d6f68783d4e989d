#pragma once
// The weights of a Hugging Face checkpoint directory: model.safetensors, or the shards of model.safetensors.index.json (as in
// transformers, the single file wins where both exist). Files are mapped; tensors are ordered by file name, then by offset.
// Errors: FileError for a missing or extra tensor or shard, a shard name that leaves the directory, and all of safetensors.h.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/io/safetensors.h"

namespace weft {

// Whether a directory has weights at all; a model of config.json alone has none.
bool has_weights(const std::string& dir);

class Checkpoint {
 public:
  explicit Checkpoint(const std::string& dir);

  const std::string& dir() const { return dir_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  const TensorInfo* find(std::string_view name) const;    // nullptr: absent
  const TensorInfo& tensor(std::string_view name) const;  // FileError: absent
  std::span<const std::byte> bytes(std::string_view name) const;
  void advise(MappedFile::Advice advice, std::string_view name) const;
  const std::vector<SafetensorsFile>& files() const { return files_; }
  int64_t total_bytes() const;

 private:
  size_t position(std::string_view name) const;

  std::string dir_;
  std::vector<SafetensorsFile> files_;
  std::vector<TensorInfo> tensors_;
  std::vector<size_t> file_of_;  // per tensor
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace weft
