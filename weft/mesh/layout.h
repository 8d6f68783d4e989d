#pragma once
// A layout: a function from rank to boxes of a global tensor. Integers only; no tensor, no communication (docs/sharding.md).
//
// An ordinary layout is a shape, a mesh and an ordered list of cuts. It is separable: along each dim a rank owns a list of
// intervals, its boxes are the products of those, and its local tensor is the intervals put together dim by dim. Cuts apply in
// the order of the list: a later cut of the same dim divides what the earlier ones left, so tp before fsdp on dim 0 gives rank
// (f, t) of F x T the block t * F + f. Axes that cut nothing hold copies, or terms of a reduction (partial). A layout may also be
// given as boxes of each rank: a file, a pipeline stage.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weft/mesh/box.h"
#include "weft/mesh/device_mesh.h"
#include "weft/mesh/placement.h"

namespace weft {

struct Interval {
  int64_t begin = 0, end = 0;  // [begin, end) of one dim of the global tensor
  bool operator==(const Interval&) const = default;
};

// A box of the global tensor and where its first element lies in the holder's local tensor.
struct LocalBox {
  Box box;
  std::vector<int64_t> local_offset;
  bool operator==(const LocalBox&) const = default;
};

// Ranks that hold the same boxes at the same places of their local tensors.
struct HolderSet {
  std::vector<int64_t> ranks;  // ascending
  std::vector<LocalBox> boxes;
};

// A value. The default is a 0-d tensor on rank 0.
class Layout {
 public:
  // Every rank of the mesh holds the whole tensor. ValueError for a negative size or more than 2^62 elements.
  static Layout replicated(std::vector<int64_t> shape, DeviceMesh mesh);
  // Each rank's boxes; in its local tensor they lie one behind the other along dim 0, so they agree in all other dims. The mesh
  // is one axis, "holder", over the ranks named. ValueError for boxes outside the shape, of another number of dims, or (of one
  // rank) overlapping. Empty boxes are dropped.
  static Layout from_boxes(std::vector<int64_t> shape, const std::map<int64_t, std::vector<Box>>& boxes);

  // A copy with one more cut, applied after all that are there. ValueError for an unknown axis, an axis that cuts or is partial
  // already, a dim that is not there, parts that do not divide the length, boundaries that are not as in placement.h, or a layout
  // made of boxes.
  Layout with_cut(Cut cut) const;
  // A copy in which `axis` holds terms. ValueError as above, and where another axis has an op that does not commute with this one
  // (sum and avg commute, else all have to be equal): the tensor's value would depend on an order that nobody stated.
  Layout with_partial(const std::string& axis, ReduceOp op) const;
  // A copy without partial axes: they hold copies.
  Layout without_partials() const;

  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t dims() const { return static_cast<int64_t>(shape_.size()); }
  const DeviceMesh& mesh() const { return mesh_; }
  const std::vector<Cut>& cuts() const { return cuts_; }
  const std::vector<Partial>& partials() const { return partials_; }
  bool made_of_boxes() const { return made_of_boxes_; }
  bool cuts_axis(const std::string& axis) const;
  bool partial_axis(const std::string& axis) const;

  // What `rank` owns along `dim`, ascending, neighbours joined; none where it owns nothing or is outside the mesh. ValueError for
  // a layout of boxes where the rank has several.
  std::vector<Interval> intervals(int64_t rank, int64_t dim) const;
  // An empty shard keeps its other dims ([0, 64]); all 0 for a rank outside the mesh and for one that was given no box.
  std::vector<int64_t> local_shape(int64_t rank) const;
  // Non-empty and disjoint, in the order of the local tensor (row-major in the intervals). A 0-d tensor is one box without dims.
  std::vector<LocalBox> boxes(int64_t rank) const;
  int64_t numel(int64_t rank) const;
  // Every rank that holds anything, once, grouped; sets in the order of their lowest rank. For ordinary layouts the sets' boxes
  // are disjoint and cover the tensor.
  std::vector<HolderSet> holder_sets() const;

  // One line: "[8, 4] on (fsdp=2, tp=2): tp cuts dim 0, fsdp cuts dim 0"
  std::string to_string() const;
  // The same description; layouts that put the same boxes on the same ranks in other words are not equal.
  bool operator==(const Layout&) const = default;

 private:
  int64_t local_length(int64_t rank, int64_t dim) const;
  void check_axis(const std::string& axis, const std::string& use) const;

  std::vector<int64_t> shape_;
  DeviceMesh mesh_;
  std::vector<Cut> cuts_;
  std::vector<Partial> partials_;
  bool made_of_boxes_ = false;
  std::map<int64_t, std::vector<LocalBox>> boxes_;  // of a layout made of boxes
};

}  // namespace weft
