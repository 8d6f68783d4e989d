#pragma once
// How the ranks of a role share a list of trajectories and join what they computed. Every rank of it holds the whole list and
// makes the same calls; one rank is the ordinary case and communicates nothing.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/parallel/rank_mesh.h"
#include "weft/train/actor.h"

namespace weft {

class DataParallel {
 public:
  explicit DataParallel(std::shared_ptr<const RankMesh> mesh = nullptr) : mesh_(std::move(mesh)) {}

  int size() const { return mesh_ ? mesh_->world.size() : 1; }
  // Whether this rank speaks for its place.
  bool first_of_place() const { return !mesh_ || (mesh_->cp.rank() == 0 && mesh_->tp.rank() == 0); }

  // Consecutive trajectories of each place in (replicate, fsdp), whose ranks work on the same; about as many tokens each. This
  // rank's in micro-batches, of which every rank has as many (the last ones may be empty).
  struct Share {
    std::vector<size_t> begin;  // [places + 1]: place r has [begin[r], begin[r+1])
    size_t mine = 0;            // this rank's place
    std::vector<MicroBatch> micro_batches;
  };
  Share share(MicroBatch list, int64_t max_tokens) const;

  // Collective.
  // `mine`: a value for each response token of this rank's share; the result: for each of the whole list.
  std::vector<float> gather_tokens(const Share& share, MicroBatch list, const std::vector<float>& mine) const;
  // The traces that this rank recorded for its share, for the whole list.
  std::vector<RoutingTrace> gather_traces(const Share& share, MicroBatch list, std::vector<RoutingTrace> mine) const;
  bool any(bool mine) const;
  double sum_over_places(double mine) const;  // one term a share
  double max(double mine) const;
  // The text of the first rank that has one.
  std::string first_text(const std::string& mine) const;
  // Over the ranks whose shards make one copy of the parameters.
  void sum_over_shards(std::vector<double>& values) const;

 private:
  std::shared_ptr<const RankMesh> mesh_;
};

}  // namespace weft
