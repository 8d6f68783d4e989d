#include "weft/train/plan_kinds.h"

#include <algorithm>
#include <map>

#include "weft/model/int8_weights.h"
#include "weft/parallel/shard_cut.h"

namespace weft {
namespace {

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

WeightCategory category_of(const std::string& name, const std::vector<int64_t>& shape) {
  if (contains(name, ".experts.")) return WeightCategory::kExperts;
  if (shape.size() < 2 || contains(name, ".mlp.gate.")) return WeightCategory::kSmall;
  if (contains(name, ".self_attn.")) return WeightCategory::kAttention;
  if (contains(name, ".mlp.")) return WeightCategory::kMlp;
  return WeightCategory::kEmbedding;
}

std::string without_layer(const TableRow& row) {
  if (row.layer < 0) return row.name;
  const std::string number = "." + std::to_string(row.layer) + ".";
  std::string name = row.name;
  return name.replace(name.find(number), number.size(), ".*.");
}

}  // namespace

DType WeightKind::rollout_type(DType rollout_dtype, DType param_dtype) const {
  if (!rounded) return DType::kF32;
  if (rollout_dtype != DType::kI8) return rollout_dtype;
  return int8_in_rollout(name) ? DType::kI8 : param_dtype;
}

WeightKinds kinds_of(const ParameterTable& table) {
  WeightKinds out;
  std::map<std::pair<std::string, std::vector<int64_t>>, size_t> known;
  for (const TableRow& row : table.rows) {
    const auto [at, is_new] = known.try_emplace({without_layer(row), row.shape}, out.kinds.size());
    if (is_new) {
      const bool embed = contains(row.name, "embed_tokens"), looked_up = embed || contains(row.name, "embedding_list");
      out.kinds.push_back({at->first.first, row.shape, row.rounded, category_of(row.name, row.shape), 0,
                           row.shape.size() >= 2 && (!looked_up || (embed && table.config.tied))});
    }
    ++out.kinds[at->second].count;
    const size_t group = static_cast<size_t>(row.layer + 1);
    if (out.groups.size() <= group) out.groups.resize(group + 1);
    out.groups[group].push_back(at->second);
  }
  return out;
}

std::vector<int64_t> coordinates_along(const DeviceMesh& mesh, const std::string& axis) {
  std::vector<int64_t> out(static_cast<size_t>(mesh.num_ranks()));
  int64_t stride = 1;
  for (size_t a = mesh.axes().size(); a-- > 0 && mesh.axes()[a] != axis;) stride *= mesh.sizes()[a];
  const int64_t size = mesh.size(axis);
  for (size_t i = 0; i < out.size(); ++i) out[static_cast<size_t>(mesh.ranks()[i])] = static_cast<int64_t>(i) / stride % size;
  return out;
}

std::vector<int64_t> by_rank(const Layout& layout, const std::function<int64_t(const std::vector<int64_t>&)>& fn) {
  const size_t ranks = static_cast<size_t>(layout.mesh().num_ranks());
  // The boxes follow from the coordinates along axes that cut.
  std::vector<int64_t> place(ranks, 0);
  int64_t places = 1;
  for (const Cut& cut : layout.cuts()) {
    const int64_t size = layout.mesh().size(cut.axis);
    if (size == 1) continue;
    const std::vector<int64_t> at = coordinates_along(layout.mesh(), cut.axis);
    for (size_t r = 0; r < ranks; ++r) place[r] = place[r] * size + at[r];
    places *= size;
  }
  std::vector<int64_t> value(static_cast<size_t>(places), -1), out(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    int64_t& v = value[static_cast<size_t>(place[r])];
    if (v < 0) v = fn(layout.local_shape(static_cast<int64_t>(r)));
    out[r] = v;
  }
  return out;
}

std::vector<PlacedKind> place_kinds(const ParameterTable& table, const WeightKinds& kinds, const ParallelDims& dims) {
  const auto numel = [](const std::vector<int64_t>& shape) {
    int64_t n = 1;
    for (int64_t s : shape) n *= s;
    return n;
  };
  std::vector<PlacedKind> out;
  for (const WeightKind& k : kinds.kinds) {
    Placement at = place_parameter(table.plan, dims, k.name, k.shape);
    PlacedKind placed{at, by_rank(at.layout, numel), by_rank(at.computed, numel), {}};
    placed.staged.assign(placed.kept.size(), 0);
    for (const Cut& cut : at.layout.cuts())
      if (cut.axis == at.fsdp_axis)
        placed.staged = by_rank(at.computed, [&](const std::vector<int64_t>& shape) {
          return ShardCut(shape, cut.dim, at.layout.mesh().size(cut.axis)).contiguous ? 0 : numel(shape);
        });
    out.push_back(std::move(placed));
  }
  return out;
}

void check_kinds(const ParameterTable& table, const WeightKinds& kinds, const ParallelDims& dims) {
  for (const WeightKind& k : kinds.kinds) (void)place_parameter(table.plan, dims, k.name, k.shape);
}

}  // namespace weft
