#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "weft/base/error.h"
#include "weft/io/atomic_file.h"
#include "weft/io/json_file.h"
#include "weft/io/safetensors.h"

namespace weft {
namespace {

void check_names(const std::vector<TensorShape>& tensors) {
  std::unordered_set<std::string_view> seen;
  for (const TensorShape& tensor : tensors) {
    WEFT_CHECK(!tensor.name.empty() && tensor.name != "__metadata__", "tensor name \"{}\" cannot be written", tensor.name);
    WEFT_CHECK(!find_invalid_utf8(tensor.name), "a tensor name is not UTF-8");
    WEFT_CHECK(seen.insert(tensor.name).second, "tensor \"{}\" is given twice", tensor.name);
  }
}

bool aligned(const std::vector<TensorShape>& order) {
  int64_t offset = 0;
  for (const TensorShape& tensor : order) {
    if (offset % dtype_bytes(tensor.dtype) != 0) return false;
    offset += tensor.num_bytes();
  }
  return true;
}

SafetensorsPlan plan_file(std::string file, std::vector<TensorShape> order, const Metadata& metadata) {
  if (!aligned(order))
    std::stable_sort(order.begin(), order.end(),
                     [](const TensorShape& a, const TensorShape& b) { return dtype_bytes(a.dtype) > dtype_bytes(b.dtype); });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  SafetensorsPlan plan;
  int64_t offset = 0;
  // Appended one by one: looking a key up in an ordered object is linear, and there may be 50 000.
  auto& entries = header.get_ref<nlohmann::ordered_json::object_t&>();
  for (const TensorShape& tensor : order) {
    const int64_t end = offset + tensor.num_bytes();
    nlohmann::ordered_json entry;
    entry["dtype"] = safetensors_dtype(tensor.dtype);
    entry["shape"] = tensor.shape;
    entry["data_offsets"] = {offset, end};
    entries.push_back({tensor.name, std::move(entry)});
    plan.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, offset, end, file});
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  plan.header.assign(reinterpret_cast<const char*>(&length), sizeof length);
  plan.header += text;
  const int64_t start = static_cast<int64_t>(plan.header.size());
  for (TensorInfo& t : plan.tensors) t.begin += start, t.end += start;
  plan.size = start + offset;
  plan.file = std::move(file);
  return plan;
}

std::vector<TensorShape> shapes(const std::vector<TensorToSave>& tensors) {
  std::vector<TensorShape> result;
  for (const TensorToSave& tensor : tensors) result.push_back({tensor.name, tensor.dtype, tensor.shape});
  return result;
}

void write_file(const std::string& path, const SafetensorsPlan& plan, const std::vector<TensorToSave>& tensors) {
  std::unordered_map<std::string_view, const TensorToSave*> by_name;
  for (const TensorToSave& tensor : tensors) by_name[tensor.name] = &tensor;
  AtomicFile file(path);
  file.write(plan.header);
  for (const TensorInfo& info : plan.tensors) {
    int64_t written = 0;
    by_name.at(info.name)->produce([&](std::span<const std::byte> bytes) {
      written += static_cast<int64_t>(bytes.size());
      file.write(bytes);
    });
    WEFT_CHECK(written == info.num_bytes(), "tensor \"{}\": {} bytes produced, {} announced", info.name, written,
               info.num_bytes());
  }
  file.commit();
}

}  // namespace

int64_t TensorShape::num_bytes() const {
  int64_t bytes = dtype_bytes(dtype);
  for (const int64_t dim : shape) {
    WEFT_CHECK(dim >= 0 && !__builtin_mul_overflow(bytes, dim, &bytes), "tensor \"{}\": bad shape", name);
  }
  return bytes;
}

TensorToSave TensorToSave::from_bytes(std::string name, DType dtype, std::vector<int64_t> shape,
                                      std::span<const std::byte> bytes) {
  TensorToSave tensor{std::move(name), dtype, std::move(shape), [bytes](const Write& write) { write(bytes); }};
  const int64_t expected = TensorShape{tensor.name, dtype, tensor.shape}.num_bytes();
  WEFT_CHECK(expected == static_cast<int64_t>(bytes.size()), "tensor \"{}\": {} bytes for a shape of {}", tensor.name,
             bytes.size(), expected);
  return tensor;
}

SafetensorsPlan plan_safetensors(const std::string& file, const std::vector<TensorShape>& tensors, const Metadata& metadata) {
  check_names(tensors);
  return plan_file(file, tensors, metadata);
}

ShardedPlan plan_sharded_safetensors(const std::vector<TensorShape>& tensors, int64_t max_shard_bytes, const Metadata& metadata) {
  WEFT_CHECK(max_shard_bytes > 0, "max_shard_bytes {}", max_shard_bytes);
  check_names(tensors);
  std::vector<std::vector<TensorShape>> shards(1);
  int64_t total = 0, shard_bytes = 0;
  for (const TensorShape& tensor : tensors) {
    const int64_t bytes = tensor.num_bytes();
    if (!shards.back().empty() && shard_bytes + bytes > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(tensor);
    shard_bytes += bytes;
    total += bytes;
  }
  ShardedPlan plan;
  if (shards.size() == 1) {
    plan.files.push_back(plan_file("model.safetensors", std::move(shards[0]), metadata));
    return plan;
  }
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total;
  nlohmann::json weight_map = nlohmann::json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    plan.files.push_back(
        plan_file(fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()), std::move(shards[i]), metadata));
    for (const TensorInfo& tensor : plan.files.back().tensors) weight_map[tensor.name] = plan.files.back().file;
  }
  index["weight_map"] = weight_map;
  plan.index = index.dump(2) + "\n";
  return plan;
}

void save_safetensors(const std::string& path, const std::vector<TensorToSave>& tensors, const Metadata& metadata) {
  write_file(path, plan_safetensors(path, shapes(tensors), metadata), tensors);
}

std::vector<std::string> save_sharded_safetensors(const std::string& dir, const std::vector<TensorToSave>& tensors,
                                                  int64_t max_shard_bytes, const Metadata& metadata) {
  const ShardedPlan plan = plan_sharded_safetensors(shapes(tensors), max_shard_bytes, metadata);
  std::vector<std::string> files;
  for (const SafetensorsPlan& file : plan.files) {
    files.push_back(file.file);
    write_file(dir + "/" + file.file, file, tensors);
  }
  if (plan.index.empty()) return files;
  files.push_back(kSafetensorsIndex);
  write_file_atomically(dir + "/" + files.back(), plan.index);
  return files;
}

}  // namespace weft
