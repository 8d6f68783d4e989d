#include "weft/checkpoint/hf_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <cstring>
#include <map>

#include "weft/base/error.h"

namespace weft {
namespace {

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return at::kFloat;
    case DType::kBF16: return at::kBFloat16;
    default: return at::kHalf;
  }
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// At most ten names, then a count.
std::string list(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size() && i < 10; ++i) out += (i ? ", " : "") + names[i];
  if (names.size() > 10) out += fmt::format(" and {} more", names.size() - 10);
  return out;
}

at::Tensor read(const Checkpoint& disk, const TensorInfo& info) {
  const auto bytes = disk.bytes(info.name);
  at::Tensor raw = at::empty(info.shape, scalar_type(info.dtype));  // foreign files need not align their tensors
  if (!bytes.empty()) std::memcpy(raw.data_ptr(), bytes.data(), bytes.size());
  return raw.to(at::kFloat);
}

// What is wrong with a tensor on disk; empty: nothing.
std::string fault(const TensorInfo& info, const WeightEntry& e) {
  if (info.shape != e.shape) return fmt::format("{} has shape {}, config.json asks for {}", e.name, shape_text(info.shape), shape_text(e.shape));
  if (info.dtype != DType::kF32 && info.dtype != DType::kBF16 && info.dtype != DType::kF16)
    return fmt::format("{} has dtype {}, weights must be float32, bfloat16 or float16", e.name, dtype_name(info.dtype));
  return "";
}

// Throws one error that lists every fault.
void check_disk(const Checkpoint& disk, const std::map<std::string, const WeightEntry*>& expected,
                const std::optional<WeightEntry>& tied_head) {
  std::vector<std::string> missing, extra, wrong;
  for (const auto& [name, entry] : expected)
    if (!disk.contains(name)) missing.push_back(name);
  for (const TensorInfo& t : disk.tensors()) {
    const auto it = expected.find(t.name);
    const WeightEntry* entry = it != expected.end() ? it->second : tied_head && t.name == tied_head->name ? &*tied_head : nullptr;
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

at::Tensor narrow_to(const at::Tensor& t, const Box& box) {
  at::Tensor out = t;
  for (size_t d = 0; d < box.size.size(); ++d) out = out.narrow(static_cast<int64_t>(d), box.offset[d], box.size[d]);
  return out;
}

DiskManifest load_hf_weights(const Checkpoint& disk, const std::vector<WeightEntry>& entries,
                             const std::optional<WeightEntry>& tied_head, const MasterByName& master) {
  at::NoGradGuard guard;
  std::map<std::string, const WeightEntry*> by_name;
  for (const WeightEntry& e : entries) by_name[e.name] = &e;
  check_disk(disk, by_name, tied_head);
  DiskManifest manifest;
  for (const TensorInfo& t : disk.tensors()) {
    manifest.push_back({t.name, t.dtype});
    const auto it = by_name.find(t.name);
    if (it == by_name.end()) continue;
    const WeightEntry& e = *it->second;
    narrow_to(master(e.parameter), e.box).copy_(read(disk, t).reshape(e.box.size));
  }
  if (tied_head && disk.contains(tied_head->name)) {
    at::Tensor head = read(disk, disk.tensor(tied_head->name));
    if (!at::equal(head, master(tied_head->parameter).to(at::kCPU)))
      throw FileError(disk.dir(), tied_head->name,
                      "differs from the embedding table although tie_word_embeddings is true: set it to false in config.json, or remove "
                      "the tensor");
  }
  return manifest;
}

DiskManifest fresh_manifest(const std::vector<WeightEntry>& entries, DType dtype) {
  DiskManifest manifest;
  for (const WeightEntry& e : entries) manifest.push_back({e.name, dtype});
  return manifest;
}

void save_hf_weights(const std::string& dir, const DiskManifest& manifest, const std::vector<WeightEntry>& entries,
                     const std::optional<WeightEntry>& tied_head, const MasterByName& master, int64_t max_shard_bytes) {
  std::map<std::string, const WeightEntry*> by_name;
  for (const WeightEntry& e : entries) by_name[e.name] = &e;
  if (tied_head) by_name.emplace(tied_head->name, &*tied_head);
  std::vector<TensorToSave> tensors;
  for (const DiskTensor& d : manifest) {
    WEFT_CHECK(by_name.count(d.name), "the manifest names {}, the model does not", d.name);
    const WeightEntry* e = by_name.at(d.name);
    tensors.push_back({d.name, d.dtype, e->shape, [e, d, &master](const TensorToSave::Write& write) {
                         at::NoGradGuard guard;
                         at::Tensor t = narrow_to(master(e->parameter), e->box).to(at::kCPU).to(scalar_type(d.dtype)).contiguous();
                         write({static_cast<const std::byte*>(t.data_ptr()), static_cast<size_t>(t.numel() * dtype_bytes(d.dtype))});
                       }});
  }
  save_sharded_safetensors(dir, tensors, max_shard_bytes);
}

}  // namespace weft
