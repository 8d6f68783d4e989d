#pragma once
// safetensors files: u64 little-endian header length, JSON header {name: {dtype, shape, data_offsets}}, then the data.
// Reading maps the file; nothing is copied. The header is checked whole before any tensor is handed out: lengths, offsets,
// shape products, gaps, overlaps, duplicate names. Errors: FileError naming file, tensor and numbers.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/io/mapped_file.h"

namespace weft {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // empty: a scalar
  int64_t begin = 0, end = 0;  // bytes from the start of the file
  std::string file;            // path of the file that holds it

  int64_t num_bytes() const { return end - begin; }
  int64_t num_elements() const { return num_bytes() / dtype_bytes(dtype); }
};

// "F32", "BF16", ...: the spelling of the format.
std::string_view safetensors_dtype(DType dtype);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // ascending offset
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const TensorInfo* find(std::string_view name) const;    // nullptr: absent
  const TensorInfo& tensor(std::string_view name) const;  // FileError: absent
  // The bytes of a tensor. Little-endian, row-major; foreign files need not align them, so copy before casting.
  std::span<const std::byte> bytes(std::string_view name) const;
  std::span<const std::byte> bytes(const TensorInfo& info) const;
  void advise(MappedFile::Advice advice, const TensorInfo& info) const;

 private:
  MappedFile file_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

using Metadata = std::map<std::string, std::string>;
inline const Metadata kPytorchMetadata = {{"format", "pt"}};
inline constexpr const char* kSafetensorsIndex = "model.safetensors.index.json";

// ---- Where everything goes, before anything is written

struct TensorShape {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t num_bytes() const;
};

struct SafetensorsPlan {
  std::string file;                 // its name
  std::string header;               // what it begins with, padded to 8 bytes
  std::vector<TensorInfo> tensors;  // in the order of the file, with their places in it
  int64_t size = 0;                 // of the file [bytes]
};

// Tensors lie in the order given. Where that would leave a tensor unaligned for its dtype (PyTorch refuses to view those), wider
// dtypes go first, order kept within a width.
SafetensorsPlan plan_safetensors(const std::string& file, const std::vector<TensorShape>& tensors,
                                 const Metadata& metadata = kPytorchMetadata);

// model.safetensors, or where the sum exceeds max_shard_bytes, model-0000i-of-0000n.safetensors and model.safetensors.index.json.
// Tensors stay in order; a tensor larger than max_shard_bytes gets a shard of its own.
struct ShardedPlan {
  std::vector<SafetensorsPlan> files;
  std::string index;  // text of kSafetensorsIndex; empty: one file without
};
ShardedPlan plan_sharded_safetensors(const std::vector<TensorShape>& tensors, int64_t max_shard_bytes,
                                     const Metadata& metadata = kPytorchMetadata);

// ---- Written by one process, in order

// One tensor to write. `produce` is called once, in order, and hands its bytes to `write` in any number of pieces; their sum
// must be the size that dtype and shape say (our bug otherwise).
struct TensorToSave {
  using Write = std::function<void(std::span<const std::byte>)>;
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::function<void(const Write&)> produce;

  // `bytes` must stay alive until the file is written.
  static TensorToSave from_bytes(std::string name, DType dtype, std::vector<int64_t> shape, std::span<const std::byte> bytes);
};

// Writes one file atomically, as plan_safetensors says.
void save_safetensors(const std::string& path, const std::vector<TensorToSave>& tensors,
                      const Metadata& metadata = kPytorchMetadata);

// Writes what plan_sharded_safetensors says into DIR, which must exist and hold no weights. Returns the file names written.
std::vector<std::string> save_sharded_safetensors(const std::string& dir, const std::vector<TensorToSave>& tensors,
                                                  int64_t max_shard_bytes, const Metadata& metadata = kPytorchMetadata);

}  // namespace weft
