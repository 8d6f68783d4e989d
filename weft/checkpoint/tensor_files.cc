#include "weft/checkpoint/tensor_files.h"

#include <ATen/core/grad_mode.h>

#include <optional>
#include <unordered_map>

#include "weft/base/error.h"
#include "weft/io/positioned_file.h"
#include "weft/kernels/element_hash.h"

namespace weft {
namespace {

std::vector<TensorShape> shapes_of(const std::vector<StoredTensor>& tensors) {
  std::vector<TensorShape> out;
  for (const StoredTensor& t : tensors) out.push_back({t.entry.name, t.dtype, t.entry.shape});
  return out;
}

TensorFile tensor_file(std::string path, SafetensorsPlan plan,
                       const std::unordered_map<std::string, const StoredTensor*>& by_name) {
  TensorFile file{std::move(path), std::move(plan), {}};
  for (const TensorInfo& t : file.plan.tensors) file.tensors.push_back(*by_name.at(t.name));
  return file;
}

std::unordered_map<std::string, const StoredTensor*> names_of(const std::vector<StoredTensor>& tensors) {
  std::unordered_map<std::string, const StoredTensor*> by_name;
  for (const StoredTensor& t : tensors) by_name[t.entry.name] = &t;
  return by_name;
}

}  // namespace

TensorFile plan_tensor_file(const std::string& path, std::vector<StoredTensor> tensors) {
  return tensor_file(path, plan_safetensors(path, shapes_of(tensors)), names_of(tensors));
}

std::vector<TensorFile> plan_sharded_tensor_files(const std::string& dir, const std::vector<StoredTensor>& tensors,
                                                  int64_t max_shard_bytes, std::string* index) {
  ShardedPlan plan = plan_sharded_safetensors(shapes_of(tensors), max_shard_bytes);
  const auto by_name = names_of(tensors);
  std::vector<TensorFile> files;
  for (SafetensorsPlan& file : plan.files) {
    const std::string path = dir.empty() ? file.file : dir + "/" + file.file;
    files.push_back(tensor_file(path, std::move(file), by_name));
  }
  *index = std::move(plan.index);
  return files;
}

void create_tensor_files(const std::string& root, const std::vector<TensorFile>& files) {
  for (const TensorFile& f : files) create_positioned_file(root + "/" + f.path, f.plan.header, f.plan.size);
}

WrittenParts write_parts(const std::string& root, const std::vector<TensorFile>& files, const PartToWrite& part) {
  at::NoGradGuard guard;
  WrittenParts out;
  for (const TensorFile& f : files) {
    std::optional<PositionedFile> file;
    for (size_t i = 0; i < f.tensors.size(); ++i) {
      const StoredTensor& t = f.tensors[i];
      const int64_t item = dtype_bytes(t.dtype), begin = f.plan.tensors[i].begin;
      uint64_t hash = 0;
      for_each_piece(part(t.entry), t.entry, [&](const at::Tensor& piece, const Box& box) {
        if (!file) file.emplace(root + "/" + f.path);
        const at::Tensor host = piece.to(at::kCPU).to(floating_type(t.dtype)).contiguous();
        const auto* from = static_cast<const std::byte*>(host.data_ptr());
        for_each_run(t.entry.box.size, box, [&](int64_t first, int64_t count) {
          const std::span<const std::byte> bytes(from, static_cast<size_t>(count * item));
          file->write(begin + first * item, bytes);
          hash += kernels::hash_elements(bytes, item, first);
          out.bytes += count * item;
          from += count * item;
        });
      });
      out.hashes.push_back(hash);
    }
    if (file) file->commit();
  }
  return out;
}

}  // namespace weft
