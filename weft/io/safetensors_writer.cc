#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "weft/base/error.h"
#include "weft/io/atomic_file.h"
#include "weft/io/json_file.h"
#include "weft/io/safetensors.h"

namespace weft {
namespace {

void check_names(const std::vector<TensorToSave>& tensors) {
  std::unordered_set<std::string_view> seen;
  for (const TensorToSave& tensor : tensors) {
    WEFT_CHECK(!tensor.name.empty() && tensor.name != "__metadata__", "tensor name \"{}\" cannot be written", tensor.name);
    WEFT_CHECK(!find_invalid_utf8(tensor.name), "a tensor name is not UTF-8");
    WEFT_CHECK(seen.insert(tensor.name).second, "tensor \"{}\" is given twice", tensor.name);
  }
}

bool aligned(const std::vector<const TensorToSave*>& order) {
  int64_t offset = 0;
  for (const TensorToSave* tensor : order) {
    if (offset % dtype_bytes(tensor->dtype) != 0) return false;
    offset += tensor->num_bytes();
  }
  return true;
}

void write_file(const std::string& path, std::vector<const TensorToSave*> order, const Metadata& metadata) {
  if (!aligned(order)) {
    std::stable_sort(order.begin(), order.end(),
                     [](const TensorToSave* a, const TensorToSave* b) { return dtype_bytes(a->dtype) > dtype_bytes(b->dtype); });
  }
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  // Appended one by one: looking a key up in an ordered object is linear, and there may be 50 000.
  auto& entries = header.get_ref<nlohmann::ordered_json::object_t&>();
  for (const TensorToSave* tensor : order) {
    nlohmann::ordered_json entry;
    entry["dtype"] = safetensors_dtype(tensor->dtype);
    entry["shape"] = tensor->shape;
    entry["data_offsets"] = {offset, offset + tensor->num_bytes()};
    entries.push_back({tensor->name, std::move(entry)});
    offset += tensor->num_bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(text);
  for (const TensorToSave* tensor : order) {
    int64_t written = 0;
    tensor->produce([&](std::span<const std::byte> bytes) {
      written += static_cast<int64_t>(bytes.size());
      file.write(bytes);
    });
    WEFT_CHECK(written == tensor->num_bytes(), "tensor \"{}\": {} bytes produced, {} announced", tensor->name, written,
               tensor->num_bytes());
  }
  file.commit();
}

std::vector<const TensorToSave*> pointers(const std::vector<TensorToSave>& tensors) {
  std::vector<const TensorToSave*> result;
  for (const TensorToSave& tensor : tensors) result.push_back(&tensor);
  return result;
}

}  // namespace

int64_t TensorToSave::num_bytes() const {
  int64_t bytes = dtype_bytes(dtype);
  for (const int64_t dim : shape) {
    WEFT_CHECK(dim >= 0 && !__builtin_mul_overflow(bytes, dim, &bytes), "tensor \"{}\": bad shape", name);
  }
  return bytes;
}

TensorToSave TensorToSave::from_bytes(std::string name, DType dtype, std::vector<int64_t> shape,
                                      std::span<const std::byte> bytes) {
  TensorToSave tensor{std::move(name), dtype, std::move(shape), [bytes](const Write& write) { write(bytes); }};
  WEFT_CHECK(tensor.num_bytes() == static_cast<int64_t>(bytes.size()), "tensor \"{}\": {} bytes for a shape of {}", tensor.name,
             bytes.size(), tensor.num_bytes());
  return tensor;
}

void save_safetensors(const std::string& path, const std::vector<TensorToSave>& tensors, const Metadata& metadata) {
  check_names(tensors);
  write_file(path, pointers(tensors), metadata);
}

std::vector<std::string> save_sharded_safetensors(const std::string& dir, const std::vector<TensorToSave>& tensors,
                                                  int64_t max_shard_bytes, const Metadata& metadata) {
  WEFT_CHECK(max_shard_bytes > 0, "max_shard_bytes {}", max_shard_bytes);
  check_names(tensors);
  std::vector<std::vector<const TensorToSave*>> shards(1);
  int64_t total = 0, shard_bytes = 0;
  for (const TensorToSave& tensor : tensors) {
    const int64_t bytes = tensor.num_bytes();
    if (!shards.back().empty() && shard_bytes + bytes > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(&tensor);
    shard_bytes += bytes;
    total += bytes;
  }
  std::vector<std::string> files;
  if (shards.size() == 1) {
    files.push_back("model.safetensors");
    write_file(dir + "/" + files.back(), shards[0], metadata);
    return files;
  }
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total;
  nlohmann::json weight_map = nlohmann::json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    files.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
    write_file(dir + "/" + files.back(), shards[i], metadata);
    for (const TensorToSave* tensor : shards[i]) weight_map[tensor->name] = files.back();
  }
  index["weight_map"] = weight_map;
  files.push_back("model.safetensors.index.json");
  write_file_atomically(dir + "/" + files.back(), index.dump(2) + "\n");
  return files;
}

}  // namespace weft
