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

// At most ten names, then a count.
std::string list(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size() && i < 10; ++i) out += (i ? ", " : "") + names[i];
  if (names.size() > 10) out += fmt::format(" and {} more", names.size() - 10);
  return out;
}

// Copies the box from `from`, the first element of dim d's slice, to `to`; returns where the next element goes.
std::byte* copy_box(const std::byte* from, std::byte* to, int64_t item, const std::vector<int64_t>& shape, const Box& box, size_t d) {
  int64_t inner = item;
  bool whole = true;  // the dims below, so that slices of this one lie side by side
  for (size_t i = d + 1; i < shape.size(); ++i) inner *= shape[i], whole = whole && box.size[i] == shape[i];
  if (d == shape.size() || whole) {
    const int64_t bytes = d == shape.size() ? item : box.size[d] * inner, skip = d == shape.size() ? 0 : box.offset[d] * inner;
    std::memcpy(to, from + skip, static_cast<size_t>(bytes));
    return to + bytes;
  }
  for (int64_t i = 0; i < box.size[d]; ++i) to = copy_box(from + (box.offset[d] + i) * inner, to, item, shape, box, d + 1);
  return to;
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

ParameterPart whole_parameter(const at::Tensor& master) {
  const std::vector<int64_t> shape = master.sizes().vec(), zero(shape.size(), 0);
  return {master, {{{zero, shape}, zero}}};
}

at::Tensor read_box(std::span<const std::byte> bytes, DType dtype, const std::vector<int64_t>& shape, const Box& box) {
  at::Tensor raw = at::empty(box.size, scalar_type(dtype));  // foreign files need not align their tensors
  if (raw.numel() > 0) copy_box(bytes.data(), static_cast<std::byte*>(raw.data_ptr()), dtype_bytes(dtype), shape, box, 0);
  return raw.to(at::kFloat);
}

at::Tensor narrow_to(const at::Tensor& t, const Box& box) {
  at::Tensor out = t;
  for (size_t d = 0; d < box.size.size(); ++d) out = out.narrow(static_cast<int64_t>(d), box.offset[d], box.size[d]);
  return out;
}

namespace {

// Where a rank's part and a tensor on disk meet: the piece of the part, and its box of the tensor on disk (shaped as e.box).
void for_each_piece(const ParameterPart& part, const WeightEntry& e, const std::function<void(const at::Tensor&, const Box&)>& fn) {
  for (const LocalBox& mine : part.boxes) {
    const Box shared = intersect(e.box, mine.box);
    if (shared.numel() == 0) continue;
    Box here{mine.local_offset, shared.size}, on_disk{{}, shared.size};
    for (size_t d = 0; d < shared.size.size(); ++d) {
      here.offset[d] += shared.offset[d] - mine.box.offset[d];
      on_disk.offset.push_back(shared.offset[d] - e.box.offset[d]);
    }
    fn(narrow_to(part.local, here), on_disk);
  }
}

}  // namespace

DiskManifest load_hf_weights(const Checkpoint& disk, const std::vector<WeightEntry>& entries,
                             const std::optional<WeightEntry>& tied_head, const PartByName& part) {
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
    for_each_piece(part(e.parameter), e, [&](const at::Tensor& there, const Box& on_disk) {
      there.copy_(read_box(disk.bytes(t.name), t.dtype, e.box.size, on_disk));
    });
  }
  if (tied_head && disk.contains(tied_head->name)) {
    for_each_piece(part(tied_head->parameter), *tied_head, [&](const at::Tensor& there, const Box& on_disk) {
      const TensorInfo& head = disk.tensor(tied_head->name);
      if (!at::equal(read_box(disk.bytes(head.name), head.dtype, tied_head->box.size, on_disk), there.to(at::kCPU)))
        throw FileError(disk.dir(), head.name,
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

void save_hf_weights(const std::string& dir, const DiskManifest& manifest, const std::vector<WeightEntry>& entries,
                     const std::optional<WeightEntry>& tied_head, const BoxReader& read, int64_t max_shard_bytes) {
  std::map<std::string, const WeightEntry*> by_name;
  for (const WeightEntry& e : entries) by_name[e.name] = &e;
  if (tied_head) by_name.emplace(tied_head->name, &*tied_head);
  std::vector<TensorToSave> tensors;
  for (const DiskTensor& d : manifest) {
    WEFT_CHECK(by_name.count(d.name), "the manifest names {}, the model does not", d.name);
    const WeightEntry* e = by_name.at(d.name);
    tensors.push_back({d.name, d.dtype, e->shape, [e, d, &read](const TensorToSave::Write& write) {
                         at::NoGradGuard guard;
                         at::Tensor t = read(e->parameter, e->box).to(at::kCPU).to(scalar_type(d.dtype)).contiguous();
                         write({static_cast<const std::byte*>(t.data_ptr()), static_cast<size_t>(t.numel() * dtype_bytes(d.dtype))});
                       }});
  }
  save_sharded_safetensors(dir, tensors, max_shard_bytes);
}

}  // namespace weft
