#pragma once
// The sizes of a run's mesh, as a recipe writes them: "replicate=2,fsdp=2,tp=2,ep=4" (torchtitan's ParallelDims).
//
// replicate, fsdp, cp and tp multiply to the world: ranks are numbered (replicate, fsdp, cp, tp), last fastest. ep and a model's
// own axes are no factors but views: each takes consecutive ranks of (fsdp, cp, tp) flattened, so its size divides fsdp * cp *
// tp.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "weft/mesh/device_mesh.h"

namespace weft {

struct ParallelDims {
  int64_t replicate = 1, fsdp = 1, cp = 1, tp = 1;
  int64_t ep = 1;
  std::vector<std::pair<std::string, int64_t>> own;  // the own axes that the parser was told of, and their sizes

  int64_t ranks_per_replica() const { return fsdp * cp * tp; }
  int64_t world() const { return replicate * ranks_per_replica(); }
  int64_t efsdp() const { return ranks_per_replica() / ep; }  // ranks that share the experts of one ep coordinate

  DeviceMesh mesh() const;         // (replicate, fsdp, cp, tp)
  DeviceMesh dense_mesh() const;   // (replicate, fsdp, tp), fsdp and cp joined under the name "fsdp"
  DeviceMesh expert_mesh() const;  // (replicate, efsdp, ep)
  // (replicate, <axis>_fsdp, <axis>) of an own axis. ValueError for an axis that is not among `own`.
  DeviceMesh view_mesh(const std::string& axis) const;

  // What parse_parallel_dims reads back: axes of size 1 are left out, "fsdp=1" where that leaves nothing.
  std::string to_string() const;
  bool operator==(const ParallelDims&) const = default;
};

// Reads "axis=size,axis=size". world: the number of ranks there are; 0 = as many as the string says. One axis may be -1: a factor
// fills what the others leave of the world, a view takes all of fsdp * cp * tp. own_axes: those that the model's
// plan adds, 1 where the string is silent.
// UsageError with the numbers and what would work: text that is no such list, an unknown axis, an axis twice, a size of 0 or
// below -1, two -1, a factor of -1 without a world, a product that is not the world or is above 2^20, a view that does not
// divide.
ParallelDims parse_parallel_dims(const std::string& text, int64_t world = 0, const std::vector<std::string>& own_axes = {});

// A rollout's mesh, "dp=4,tp=2,ep=8": dp copies of the weights, each over tp ranks; ep is no factor but takes its ranks from dp *
// tp, and is tp where the text is silent. In the result dp is `fsdp`. UsageError as above.
ParallelDims parse_rollout_dims(const std::string& text, int64_t world = 0, const std::vector<std::string>& own_axes = {});
// What it reads back.
std::string rollout_text(const ParallelDims& dims);

// "0-3" or "0,2,5-7" as ascending ranks. UsageError that begins with `key`.
std::vector<int> parse_ranks(const std::string& text, const std::string& key);

}  // namespace weft
