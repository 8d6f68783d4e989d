#pragma once
// Path B of the sharding contract (docs/sharding.md): what the model-parallel axes (tp, ep, a model's own) do to each parameter.
// A plan is data: entries "parameters of this name, on this axis, so". FSDP then cuts a dim that the plan left.

#include <span>
#include <string>
#include <vector>

#include "weft/mesh/layout.h"
#include "weft/mesh/parallel_dims.h"

namespace weft {

// Where a cut's shares begin.
enum class Shares {
  kChunks,       // ceil chunks
  kContraction,  // whole leaves of a row-parallel contraction (placement.h), and every dim that carries its K
  kVocabulary,   // whole leaves of the vocabulary
  kHeads         // whole key/value heads: equal shares, or copies where the axis has more ranks than there are heads
};

struct PlanEntry {
  enum class Kind {
    kCut,               // each rank computes with its part; gradients of the part are whole
    kReplicated,        // every rank of the axis computes the whole gradient
    kReplicatedPartial  // the ranks' gradients are terms of it
  };
  std::string pattern;  // of full parameter names; "*" is any run of characters
  std::string axis;
  Kind kind = Kind::kReplicated;
  int64_t dim = 0;  // of a cut
  Shares shares = Shares::kChunks;
  int64_t heads = 0;  // the dim's heads, for kHeads and (0: anything may be cut) for kContraction
};
using ShardingPlan = std::vector<PlanEntry>;

PlanEntry cut(std::string pattern, std::string axis, int64_t dim, Shares shares = Shares::kChunks, int64_t heads = 0);
PlanEntry replicated(std::string pattern, std::string axis);
PlanEntry replicated_partial(std::string pattern, std::string axis);

// "PATTERN AXIS PLACEMENT", as users write entries; PLACEMENT is cut(DIM), replicated or replicated-partial. AXIS may be fsdp,
// where cut(DIM) chooses the dim and replicated keeps the parameter whole. UsageError that says what is wrong.
PlanEntry parse_plan_entry(const std::string& text);
// "tp: cut(1)"
std::string describe(const PlanEntry& e);
// The entry that counts for a parameter on an axis; null: none.
const PlanEntry* find_entry(const ShardingPlan& plan, const std::string& axis, const std::string& name);

// Whether the pattern is the name's.
bool matches(const std::string& pattern, const std::string& name);

// One parameter's place on the mesh.
struct Placement {
  Layout computed;                        // what each rank's forward reads: cut by the plan, gathered from fsdp
  Layout layout;                          // what each rank keeps
  std::string fsdp_axis;                  // of both layouts' mesh: over which the kept parts are gathered and gradients summed
  std::vector<std::string> partial_axes;  // over which gradients are summed besides
  std::string reason;                     // why that fsdp dim, for a person
};

// Parameters with an entry for ep live on the expert mesh, for an own axis on that one's, all others on the dense mesh. Of
// several entries that match for an axis the last counts. FSDP's dim is an entry's for "fsdp", else chosen (choose_dim.h).
// UsageError, with what there is and what would work: no entry for an axis of the mesh that is larger than 1, a dim that is not
// there, shares that the size forbids.
Placement place_parameter(const ShardingPlan& plan, const ParallelDims& dims, const std::string& name,
                          const std::vector<int64_t>& shape);

// UsageError for an entry that no name matches and for an axis that is none.
void check_plan(const ShardingPlan& plan, const ParallelDims& dims, std::span<const std::string> names);

}  // namespace weft
