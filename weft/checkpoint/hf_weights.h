#pragma once
// Weights between a Hugging Face checkpoint and the model's fp32 masters. load -> save gives the same names, shapes, dtypes and bytes.

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/io/checkpoint_files.h"
#include "weft/mesh/layout.h"
#include "weft/mesh/weight_entry.h"

namespace weft {

// What a checkpoint holds, in its order: the manifest to write it back by.
struct DiskTensor {
  std::string name;
  DType dtype = DType::kF32;
};
using DiskManifest = std::vector<DiskTensor>;

// What a rank has of a parameter's fp32 master: a tensor (CPU or other device) and which boxes of the parameter it consists of.
struct ParameterPart {
  at::Tensor local;
  std::vector<LocalBox> boxes;
};
ParameterPart whole_parameter(const at::Tensor& master);
// By the parameter's name in the module tree.
using PartByName = std::function<ParameterPart(const std::string&)>;
// fp32 [box.size] of a parameter, for the rank that writes.
using BoxReader = std::function<at::Tensor(const std::string& parameter, const Box& box)>;

// The part of a parameter (or of its gradient) that `box` names: a view.
at::Tensor narrow_to(const at::Tensor& t, const Box& box);

// Bytes of a tensor on disk of `shape`: the box of them, read and nothing else.
at::Tensor read_box(std::span<const std::byte> bytes, DType dtype, const std::vector<int64_t>& shape, const Box& box);

// Fills this rank's parts, reading their bytes only. Every entry must be on disk with its shape and a floating dtype (f32, bf16, f16), and nothing else may be there,
// but for `tied_head`, which must then equal the table it repeats. One FileError lists all that is missing, extra, misshapen or of another dtype.
DiskManifest load_hf_weights(const Checkpoint& disk, const std::vector<WeightEntry>& entries,
                             const std::optional<WeightEntry>& tied_head, const PartByName& part);

// A manifest for a model that was never on disk.
DiskManifest fresh_manifest(const std::vector<WeightEntry>& entries, DType dtype);

// Writes DIR/model*.safetensors; DIR exists and holds no weights. Values are rounded to the manifest's dtypes.
void save_hf_weights(const std::string& dir, const DiskManifest& manifest, const std::vector<WeightEntry>& entries,
                     const std::optional<WeightEntry>& tied_head, const BoxReader& read,
                     int64_t max_shard_bytes = int64_t{5} * 1000 * 1000 * 1000);

}  // namespace weft
