#pragma once
// Parameters of a model by kind: the layers repeat the same few shapes in the same places, so each is placed once.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weft/model/parameter_table.h"

namespace weft {

enum class WeightCategory { kExperts, kAttention, kMlp, kEmbedding, kSmall };

struct WeightKind {
  std::string name;  // "model.layers.*.mlp.experts.gate_up_proj"
  std::vector<int64_t> shape;
  bool rounded = true;
  WeightCategory category = WeightCategory::kSmall;
  int64_t count = 0;    // parameters
  bool packed = false;  // a product reads its panels

  // What the rollout keeps of it and a refit sends. int8 is for the weights of the layers' products (model/int8_weights.h), with
  // a scale a row; others are of param_dtype then.
  DType rollout_type(DType rollout_dtype, DType param_dtype) const;
};
struct WeightKinds {
  std::vector<WeightKind> kinds;
  std::vector<std::vector<size_t>> groups;  // of fully_shard: the outermost, then the layers; indices of kinds
};
WeightKinds kinds_of(const ParameterTable& table);

// A kind's places on a mesh; elements by rank.
struct PlacedKind {
  Placement placement;
  std::vector<int64_t> kept, computed;  // of placement.layout and placement.computed
  std::vector<int64_t> staged;          // of `computed` what a gather cannot write in place
};
// UsageError where the mesh does not fit the model.
std::vector<PlacedKind> place_kinds(const ParameterTable& table, const WeightKinds& kinds, const ParallelDims& dims);
// Only whether it would throw, and what.
void check_kinds(const ParameterTable& table, const WeightKinds& kinds, const ParallelDims& dims);

// fn(local shape) for each rank of the layout's mesh, once for ranks with the same boxes.
std::vector<int64_t> by_rank(const Layout& layout, const std::function<int64_t(const std::vector<int64_t>&)>& fn);
// Of each rank along an axis of a mesh over the world.
std::vector<int64_t> coordinates_along(const DeviceMesh& mesh, const std::string& axis);

}  // namespace weft
