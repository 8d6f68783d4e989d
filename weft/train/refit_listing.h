#pragma once
// The plan of a refit between two meshes, transfer by transfer, for a person (`weft inspect refit`): from config.json alone, no
// weights, no ranks. What `weft plan` sums up, of meshes small enough to list.

#include <cstdint>
#include <string>
#include <vector>

#include "weft/train/plan.h"

namespace weft {

struct RefitListingOptions {
  DType rollout_dtype = DType::kBF16;      // what a refit sends; fp32 where bf16 rounds nothing (norms, router)
  int64_t watermark = 64'000'000;          // refit.watermark_mb [bytes]
  std::string train_ranks, rollout_ranks;  // as actor.ranks and rollout.ranks; both empty: list_refit
};

struct RefitListing {
  ParallelDims train, rollout;
  std::vector<int> train_ranks, rollout_ranks;  // of the job
  RefitListingOptions options;
  std::vector<RefitTensor> tensors;
  RefitPlan plan;
  // Bytes of a rank of the job. `needed`: what it keeps as a rank of the rollout; `own`: of that, what it makes from its own
  // part.
  struct Rank {
    int64_t needed = 0, own = 0, received = 0, sent = 0;
  };
  std::vector<Rank> ranks;
  // What the ranks lack altogether, worked out apart from the plan: its received bytes over these are the byte ratio.
  int64_t lacking = 0, received = 0;
  int64_t largest_sent = 0, least_largest_sent = 0;  // the fullest sender's bytes, and the least that any plan could leave it
  int64_t transfers = 0, buckets = 0;                // between ranks; at most watermark bytes in two buckets
  double byte_ratio() const { return lacking == 0 ? 1.0 : static_cast<double>(received) / static_cast<double>(lacking); }
};

// Without ranks both roles have the same, from 0; where the meshes have other sizes the rollout's stand behind the trainer's.
// UsageError for meshes that the model cannot have, with those that work; ranks that do not fit them, or that two roles share in
// part; more transfers than a list is for.
RefitListing list_refit(const ParameterTable& table, const std::string& train_mesh, const std::string& rollout_mesh,
                        const RefitListingOptions& options);

// Which transfers are shown: of tensors whose name matches ("*" is any run of characters), at most `limit` (0: all; else the text
// has 64 ranks at most, too). What is left
// out is said. UsageError where no name matches.
struct RefitListingView {
  std::string name = "*";
  int64_t limit = 40;
};
std::string refit_listing_text(const RefitListing& r, const RefitListingView& view);
std::string refit_listing_json(const RefitListing& r, const RefitListingView& view);  // names end in their units

}  // namespace weft
