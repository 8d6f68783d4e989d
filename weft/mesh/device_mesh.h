#pragma once
// A device mesh: ranks arranged in a named n-dimensional array, as torch's DeviceMesh. "Axis" is always an axis of a mesh, "dim"
// one of a tensor. A value: immutable, copies share one array, so a layout of every parameter may hold its own.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace weft {

class DeviceMesh {
 public:
  // No axis, one rank: 0.
  DeviceMesh();
  // `ranks` are global ranks in row-major order (last axis fastest); left out, they are 0, 1, 2 ... ValueError for an axis
  // without a name or named twice, a size below 1, ranks that are negative, repeated or not as many as the product of the sizes.
  DeviceMesh(std::vector<std::string> axes, std::vector<int64_t> sizes, std::vector<int64_t> ranks);
  DeviceMesh(std::vector<std::string> axes, std::vector<int64_t> sizes);

  const std::vector<std::string>& axes() const;
  const std::vector<int64_t>& sizes() const;
  const std::vector<int64_t>& ranks() const;  // row-major
  int64_t num_ranks() const { return static_cast<int64_t>(ranks().size()); }

  // An unknown axis or a rank outside the mesh is a ValueError that names what there is.
  bool has(const std::string& axis) const;
  int64_t size(const std::string& axis) const;
  bool contains(int64_t rank) const;
  int64_t coordinate(int64_t rank, const std::string& axis) const;
  // One entry an axis.
  std::vector<int64_t> coordinates(int64_t rank) const;
  // The ranks that differ from `rank` along `axis` at most, in the order of their coordinates.
  std::vector<int64_t> group(int64_t rank, const std::string& axis) const;

  // The mesh of these axes, in this order, that passes through `rank`.
  DeviceMesh slice(const std::vector<std::string>& axes, int64_t rank) const;
  // The same ranks with neighbouring axes (given in the mesh's order) joined into one. ValueError unless they are neighbours.
  DeviceMesh flatten(const std::vector<std::string>& axes, const std::string& name) const;
  // The inverse: one axis split into several, last fastest. ValueError unless the product of `sizes` is the axis' size.
  DeviceMesh unflatten(const std::string& axis, const std::vector<std::string>& names, const std::vector<int64_t>& sizes) const;

  // "(replicate=2, fsdp=4)"
  std::string to_string() const;
  bool operator==(const DeviceMesh& other) const;

 private:
  struct Data;
  size_t axis_index(const std::string& axis) const;
  int64_t position(int64_t rank) const;  // in ranks(); -1 for a rank outside
  int64_t checked_position(int64_t rank) const;
  int64_t stride(size_t axis) const;

  std::shared_ptr<const Data> data_;
};

}  // namespace weft
