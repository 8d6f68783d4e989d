// Files written by parts: memory beside the parts is one piece, parts of several writers make up the file, errors name it.
#include "weft/checkpoint/tensor_files.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/io/test_files.h"
#include "weft/kernels/element_hash.h"
#include "weft/mesh/single_writer.h"
#include "weft/parallel/test_counting_allocator.h"

namespace weft {
namespace {

StoredTensor stored_whole(const std::string& name, const std::vector<int64_t>& shape, DType dtype) {
  return {{name, shape, name, {std::vector<int64_t>(shape.size(), 0), shape}}, dtype};
}

// Rows, columns, rounded: what is made of a part on the way stays small, writing and reading.
TEST(TensorFiles, MemoryBesideThePartIsAPiece) {
  const testing::CountBytes count;
  testing::ByteMeter meter;
  testing::this_ranks_meter = &meter;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t dim : {0, 1}) {
      const TemporaryDirectory dir;
      const std::vector<int64_t> shape = {3000, 2000};  // 24 MB
      const Layout layout = Layout::replicated(shape, DeviceMesh({"fsdp"}, {2})).with_cut({"fsdp", dim});
      const at::Tensor full = at::arange(6'000'000, at::kFloat).reshape(shape);
      const std::vector<TensorFile> files = {plan_tensor_file("t.safetensors", {stored_whole("t", shape, dtype)})};
      create_tensor_files(dir.path(), files);
      uint64_t hash = 0;
      int64_t bytes = 0;
      for (const int64_t rank : {0, 1}) {
        const ParameterPart part{narrow_to(full, layout.boxes(rank)[0].box), boxes_to_write(layout, rank)};
        meter.restart();
        const int64_t before = meter.live;
        const WrittenParts written = write_parts(dir.path(), files, [&](const WeightEntry&) { return part; });
        EXPECT_LE(meter.peak - before, int64_t{13} << 20);
        hash += written.hashes.at(0);
        bytes += written.bytes;
      }
      EXPECT_EQ(bytes, files[0].plan.size - static_cast<int64_t>(files[0].plan.header.size()));
      const SafetensorsFile file(dir.file("t.safetensors"));
      EXPECT_EQ(hash, kernels::hash_elements(file.bytes("t"), dtype_bytes(dtype), 0));
      at::Tensor again = at::empty(shape, at::kFloat);
      meter.restart();
      const int64_t before = meter.live;
      read_part(file.bytes("t"), dtype, files[0].tensors[0].entry, whole_parameter(again));
      EXPECT_LE(meter.peak - before, int64_t{13} << 20);
      EXPECT_TRUE(at::equal(again, full.to(floating_type(dtype)).to(at::kFloat)));
    }
  testing::this_ranks_meter = nullptr;
}

TEST(TensorFiles, ErrorsNameTheFile) {
  const TemporaryDirectory dir;
  const std::vector<TensorFile> files = {plan_tensor_file("none/t.safetensors", {stored_whole("t", {2}, DType::kF32)})};
  EXPECT_NE(message_of<SystemError>([&] { create_tensor_files(dir.path(), files); }).find("t.safetensors: cannot create"),
            std::string::npos);
  const at::Tensor t = at::arange(2, at::kFloat);
  EXPECT_NE(message_of<SystemError>([&] {
              write_parts(dir.path(), files, [&](const WeightEntry&) { return whole_parameter(t); });
            }).find("t.safetensors: cannot open"),
            std::string::npos);
  // A rank that has nothing of a file needs no file.
  EXPECT_EQ(write_parts(dir.path(), files, [&](const WeightEntry&) { return ParameterPart{t, {}}; }).bytes, 0);
}

}  // namespace
}  // namespace weft
