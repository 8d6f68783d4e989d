#include "weft/checkpoint/hf_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <map>

#include "weft/base/error.h"
#include "weft/io/atomic_file.h"

namespace weft {
namespace {

// At most ten names, then a count.
std::string list(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size() && i < 10; ++i) out += (i ? ", " : "") + names[i];
  if (names.size() > 10) out += fmt::format(" and {} more", names.size() - 10);
  return out;
}

// What is wrong with a tensor on disk; empty: nothing.
std::string fault(const TensorInfo& info, const WeightEntry& e) {
  if (info.shape != e.shape)
    return fmt::format("{} has shape {}, config.json asks for {}", e.name, shape_text(info.shape), shape_text(e.shape));
  if (info.dtype != DType::kF32 && info.dtype != DType::kBF16 && info.dtype != DType::kF16)
    return fmt::format("{} has dtype {}, weights must be float32, bfloat16 or float16", e.name, dtype_name(info.dtype));
  return "";
}

bool among(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Throws one error that lists every fault.
void check_disk(const Checkpoint& disk, const std::map<std::string, const WeightEntry*>& expected,
                const std::optional<WeightEntry>& tied_head, const OtherHead& other) {
  std::vector<std::string> missing, extra, wrong;
  for (const auto& [name, entry] : expected)
    if (!disk.contains(name) && !among(other.optional, name)) missing.push_back(name);
  for (const TensorInfo& t : disk.tensors()) {
    const auto it = expected.find(t.name);
    const WeightEntry* entry = it != expected.end() ? it->second : tied_head && t.name == tied_head->name ? &*tied_head : nullptr;
    if (!entry && among(other.ignored, t.name)) continue;
    if (!entry)
      extra.push_back(t.name);
    else if (const std::string what = fault(t, *entry); !what.empty())
      wrong.push_back(what);
  }
  std::vector<std::string> faults;
  if (!missing.empty()) faults.push_back("tensors that config.json asks for are missing: " + list(missing));
  if (!extra.empty()) faults.push_back("tensors that config.json does not account for: " + list(extra));
  if (!wrong.empty()) faults.push_back("tensors that do not fit: " + list(wrong));
  if (!faults.empty()) throw FileError(disk.dir(), "", fmt::format("{}", fmt::join(faults, "; ")));
}

}  // namespace

DiskManifest check_hf_weights(const Checkpoint& disk, const std::vector<WeightEntry>& entries,
                              const std::optional<WeightEntry>& tied_head, const OtherHead& other) {
  std::map<std::string, const WeightEntry*> by_name;
  for (const WeightEntry& e : entries) by_name[e.name] = &e;
  check_disk(disk, by_name, tied_head, other);
  DiskManifest manifest;
  for (const TensorInfo& t : disk.tensors())
    if (by_name.count(t.name) || !among(other.ignored, t.name)) manifest.push_back({t.name, t.dtype});
  return manifest;
}

DiskManifest load_hf_weights(const Checkpoint& disk, const std::vector<WeightEntry>& entries,
                             const std::optional<WeightEntry>& tied_head, const PartByName& part, int64_t* bytes_read,
                             const OtherHead& other) {
  at::NoGradGuard guard;
  DiskManifest manifest = check_hf_weights(disk, entries, tied_head, other);
  std::map<std::string, const WeightEntry*> by_name;
  for (const WeightEntry& e : entries) by_name[e.name] = &e;
  for (const DiskTensor& t : manifest) {
    const auto it = by_name.find(t.name);
    if (it == by_name.end()) continue;
    const WeightEntry& e = *it->second;
    const int64_t read = read_part(disk.bytes(t.name), t.dtype, e, part(e.parameter));
    if (bytes_read) *bytes_read += read;
  }
  if (tied_head && disk.contains(tied_head->name)) {
    for_each_piece(part(tied_head->parameter), *tied_head, [&](const at::Tensor& there, const Box& on_disk) {
      const TensorInfo& head = disk.tensor(tied_head->name);
      if (!at::equal(read_box(disk.bytes(head.name), head.dtype, tied_head->box.size, on_disk), there.to(at::kCPU)))
        throw FileError(
            disk.dir(), head.name,
            "differs from the embedding table although tie_word_embeddings is true: set it to false in config.json, or remove "
            "the tensor");
    });
  }
  return manifest;
}

DiskManifest fresh_manifest(const std::vector<WeightEntry>& entries, DType dtype) {
  DiskManifest manifest;
  for (const WeightEntry& e : entries) manifest.push_back({e.name, dtype});
  return manifest;
}

std::vector<StoredTensor> stored_tensors(const DiskManifest& manifest, const std::vector<WeightEntry>& entries,
                                         const std::optional<WeightEntry>& tied_head) {
  std::map<std::string, const WeightEntry*> by_name;
  for (const WeightEntry& e : entries) by_name[e.name] = &e;
  if (tied_head) by_name.emplace(tied_head->name, &*tied_head);
  std::vector<StoredTensor> tensors;
  for (const DiskTensor& d : manifest) {
    WEFT_CHECK(by_name.count(d.name), "the manifest names {}, the model does not", d.name);
    tensors.push_back({*by_name.at(d.name), d.dtype});
  }
  return tensors;
}

std::vector<TensorFile> plan_hf_weights(const std::string& dir, const DiskManifest& manifest,
                                        const std::vector<WeightEntry>& entries, const std::optional<WeightEntry>& tied_head,
                                        std::string* index, int64_t max_shard_bytes) {
  return plan_sharded_tensor_files(dir, stored_tensors(manifest, entries, tied_head), max_shard_bytes, index);
}

void save_hf_weights(const std::string& dir, const DiskManifest& manifest, const std::vector<WeightEntry>& entries,
                     const std::optional<WeightEntry>& tied_head, const PartByName& part, int64_t max_shard_bytes) {
  std::string index;
  const std::vector<TensorFile> files = plan_hf_weights("", manifest, entries, tied_head, &index, max_shard_bytes);
  create_tensor_files(dir, files);
  write_parts(dir, files, [&](const WeightEntry& e) { return part(e.parameter); });
  if (!index.empty()) write_file_atomically(dir + "/" + kSafetensorsIndex, index);
}

}  // namespace weft
