#include "weft/checkpoint/tensor_files.h"

#include <ATen/core/grad_mode.h>

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

PartWriter::PartWriter(std::string root, const std::vector<TensorFile>& files) : root_(std::move(root)), files_(files) {}
PartWriter::~PartWriter() = default;

void PartWriter::leave_file() {
  if (open_) open_->commit();
  open_.reset();
  ++file_, tensor_ = 0;
}

void PartWriter::write(const ParameterPart& part) {
  at::NoGradGuard guard;
  while (file_ < files_.size() && tensor_ == files_[file_].tensors.size()) leave_file();
  WEFT_CHECK(file_ < files_.size(), "more parts than tensors");
  const TensorFile& f = files_[file_];
  const StoredTensor& t = f.tensors[tensor_];
  const int64_t item = dtype_bytes(t.dtype), begin = f.plan.tensors[tensor_].begin;
  uint64_t hash = 0;
  for_each_piece(part, t.entry, [&](const at::Tensor& piece, const Box& box) {
    if (!open_) open_ = std::make_unique<PositionedFile>(root_ + "/" + f.path);
    const at::Tensor host = piece.to(at::kCPU).to(floating_type(t.dtype)).contiguous();
    const auto* from = static_cast<const std::byte*>(host.data_ptr());
    for_each_run(t.entry.box.size, box, [&](int64_t first, int64_t count) {
      const std::span<const std::byte> bytes(from, static_cast<size_t>(count * item));
      open_->write(begin + first * item, bytes);
      hash += kernels::hash_elements(bytes, item, first);
      written_.bytes += count * item;
      from += count * item;
    });
  });
  written_.hashes.push_back(hash);
  ++tensor_;
}

WrittenParts PartWriter::finish() {
  while (file_ < files_.size()) {
    WEFT_CHECK(tensor_ == files_[file_].tensors.size(), "{} ends before {}", root_, files_[file_].path);
    leave_file();
  }
  return std::move(written_);
}

WrittenParts write_parts(const std::string& root, const std::vector<TensorFile>& files, const PartToWrite& part) {
  PartWriter writer(root, files);
  for (const TensorFile& f : files)
    for (const StoredTensor& t : f.tensors) writer.write(part(t.entry));
  return writer.finish();
}

std::vector<StoredTensor> tensors_in(const std::vector<TensorFile>& files) {
  std::vector<StoredTensor> out;
  for (const TensorFile& f : files) out.insert(out.end(), f.tensors.begin(), f.tensors.end());
  return out;
}

}  // namespace weft
