#include "weft/parallel/shard_reader.h"

#include <iterator>

#include "weft/base/error.h"
#include "weft/parallel/distributed_tensor.h"

namespace weft {
namespace {

constexpr const char* kPurpose = "save";
constexpr int64_t kFinished = -1;

}  // namespace

ShardReader::ShardReader(std::map<std::string, Source> sources, std::shared_ptr<const RankMesh> mesh)
    : sources_(std::move(sources)), mesh_(std::move(mesh)) {
  for (const auto& [name, source] : sources_) WEFT_CHECK(source.layout.dims() <= static_cast<int64_t>(kDims), "{} has too many dims", name);
}

// A request is the number of the tensor, then offset and size of the box, padded to kDims each.
at::Tensor ShardReader::take_part(const std::vector<int64_t>& request) {
  const Source& source = std::next(sources_.begin(), request[0])->second;
  const size_t dims = static_cast<size_t>(source.layout.dims());
  Box box;
  box.offset.assign(request.begin() + 1, request.begin() + 1 + static_cast<std::ptrdiff_t>(dims));
  box.size.assign(request.begin() + 1 + kDims, request.begin() + 1 + kDims + static_cast<std::ptrdiff_t>(dims));
  return gather_box(source.local, source.layout, box, 0, *mesh_);
}

at::Tensor ShardReader::read(const std::string& name, const Box& box) {
  const auto it = sources_.find(name);
  WEFT_CHECK(it != sources_.end(), "no tensor {}", name);
  std::vector<int64_t> request(1 + 2 * kDims, 0);
  request[0] = std::distance(sources_.begin(), it);
  std::copy(box.offset.begin(), box.offset.end(), request.begin() + 1);
  std::copy(box.size.begin(), box.size.end(), request.begin() + 1 + kDims);
  mesh_->world.broadcast(request.data(), static_cast<int64_t>(request.size()), DType::kI64, 0, kPurpose).wait();
  return take_part(request);
}

at::Tensor ShardReader::read(const std::string& name) {
  const auto it = sources_.find(name);
  WEFT_CHECK(it != sources_.end(), "no tensor {}", name);
  const std::vector<int64_t>& shape = it->second.layout.shape();
  return read(name, {std::vector<int64_t>(shape.size(), 0), shape});
}

void ShardReader::finish() {
  std::vector<int64_t> request(1 + 2 * kDims, kFinished);
  mesh_->world.broadcast(request.data(), static_cast<int64_t>(request.size()), DType::kI64, 0, kPurpose).wait();
}

void ShardReader::serve() {
  std::vector<int64_t> request(1 + 2 * kDims, 0);
  for (;;) {
    mesh_->world.broadcast(request.data(), static_cast<int64_t>(request.size()), DType::kI64, 0, kPurpose).wait();
    if (request[0] == kFinished) return;
    take_part(request);
  }
}

}  // namespace weft
