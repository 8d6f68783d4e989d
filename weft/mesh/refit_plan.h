#pragma once
// Which rank sends what to whom when the trainer's weights become the rollout's (docs/refit.md): the copy planner over many
// tensors at once, with the senders' bytes balanced. Integers only; every rank that plans the same tensors gets the same plan.

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/mesh/plan.h"

namespace weft {

// A tensor of the trainer that is needed in the rollout. Ranks are those of the job, whatever role they have; boxes are of the
// trainer's tensor. `to` may say places in a local tensor of another shape: how a part of a fused tensor (qkv, gate and up) is
// told.
struct RefitTensor {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;  // of the rollout: what travels
  std::vector<HolderSet> from, to;
};

struct RefitPlan {
  // By tensor, each sorted by source, destination, offset. source == destination: the rank has it; nothing travels.
  std::vector<std::vector<Transfer>> transfers;
  std::map<int64_t, int64_t> sent, received;  // bytes between ranks; ranks that move nothing are not there
  int64_t largest_box = 0;                    // bytes of the largest transfer before any was split
};

// Every rank of `to` gets each element that it lacks once, from a rank that holds it, and nothing else. Where several ranks hold
// a box they share the sending (a box may be split between two of them): the loads are made as even as who holds what allows, so
// that the largest is the least possible, but for less than `largest_box`. ValueError for elements that nobody holds.
RefitPlan plan_refit(std::span<const RefitTensor> tensors);

// How a refit's transfers travel: visit(bucket, tensor, part) for each transfer between ranks, in the plan's order, in parts that
// no rank has more than half of `watermark` bytes of in one bucket, sent and received (two buckets are in flight; what becomes
// bf16 counts twice at its sender, for the converted copy). Returns how many buckets there are, one at least. ValueError for a
// watermark that is too small for an element.
using RefitBucketVisit = std::function<void(int64_t bucket, size_t tensor, const Transfer& part)>;
int64_t for_each_in_buckets(std::span<const RefitTensor> tensors, const RefitPlan& plan, int64_t watermark,
                            const RefitBucketVisit& visit);

// What plan_refit would move, without the list of transfers, of which thousands of ranks have millions. counts[i]: how many
// tensors like tensors[i] there are (the layers of a model), looked at once.
struct RefitLoad {
  // Bytes. `received` is plan_refit's; `sent` is where its loads are made even, from which whole slices of boxes take it by less
  // than largest_box. Ranks without any are not there.
  std::map<int64_t, int64_t> sent, received;
  std::map<int64_t, int64_t> needed;  // what a rank of the rollout keeps, moved or not
  int64_t unique = 0;                 // what any rank lacks, counted once
  int64_t largest_box = 0;
};
// Called with each pair of ranks between which bytes move (in the mean, where several hold a box).
using RefitFlow = std::function<void(int64_t source, int64_t destination, double bytes)>;
RefitLoad refit_load(std::span<const RefitTensor> tensors, std::span<const int64_t> counts, const RefitFlow& flow = {});

// What a rank needs of a tensor and does not hold: the least that it can receive [bytes].
int64_t missing_bytes(const RefitTensor& tensor, int64_t rank);

// The same layout with every rank r of it called ranks[r]: a role's ranks as those of the job.
std::vector<HolderSet> holder_sets_of(const Layout& layout, std::span<const int> ranks);

}  // namespace weft
