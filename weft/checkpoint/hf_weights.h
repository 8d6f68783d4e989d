#pragma once
// Weights between a Hugging Face checkpoint and the model's fp32 masters. load -> save gives the same names, shapes, dtypes and
// bytes.

#include <optional>
#include <string>
#include <vector>

#include "weft/checkpoint/parameter_part.h"
#include "weft/checkpoint/tensor_files.h"
#include "weft/io/checkpoint_files.h"
#include "weft/mesh/weight_entry.h"

namespace weft {

// What a checkpoint holds, in its order: the manifest to write it back by.
struct DiskTensor {
  std::string name;
  DType dtype = DType::kF32;
};
using DiskManifest = std::vector<DiskTensor>;

// `other` names what may be there and is not read, and entries that may be missing: another head of the same trunk.
struct OtherHead {
  std::vector<std::string> ignored, optional;
};
// What is there, from the headers alone. Every entry must be on disk with its shape and a floating dtype (f32, bf16, f16), and
// nothing else may be there, but for `tied_head`. One FileError lists all that is missing, extra, misshapen or of another dtype.
DiskManifest check_hf_weights(const Checkpoint& disk, const std::vector<WeightEntry>& entries,
                              const std::optional<WeightEntry>& tied_head, const OtherHead& other = {});
// The same, and fills this rank's parts, reading their bytes only (`bytes_read`: how many). A `tied_head` must equal the table
// that it repeats.
DiskManifest load_hf_weights(const Checkpoint& disk, const std::vector<WeightEntry>& entries,
                             const std::optional<WeightEntry>& tied_head, const PartByName& part, int64_t* bytes_read = nullptr,
                             const OtherHead& other = {});

// A manifest for a model that was never on disk.
DiskManifest fresh_manifest(const std::vector<WeightEntry>& entries, DType dtype);

// The manifest's tensors in its order, each rounded to its dtype.
std::vector<StoredTensor> stored_tensors(const DiskManifest& manifest, const std::vector<WeightEntry>& entries,
                                         const std::optional<WeightEntry>& tied_head);

// DIR/model*.safetensors as files that ranks write together, values rounded to the manifest's dtypes; `index`: the text of their
// index, empty where there is one file.
inline constexpr int64_t kMaxShardBytes = int64_t{5} * 1000 * 1000 * 1000;
std::vector<TensorFile> plan_hf_weights(const std::string& dir, const DiskManifest& manifest,
                                        const std::vector<WeightEntry>& entries, const std::optional<WeightEntry>& tied_head,
                                        std::string* index, int64_t max_shard_bytes = kMaxShardBytes);

// The same, written by one rank that has all parameters whole. DIR exists and holds no weights.
void save_hf_weights(const std::string& dir, const DiskManifest& manifest, const std::vector<WeightEntry>& entries,
                     const std::optional<WeightEntry>& tied_head, const PartByName& part,
                     int64_t max_shard_bytes = kMaxShardBytes);

}  // namespace weft
