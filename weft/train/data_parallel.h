#pragma once
// How the ranks of a run share a list of trajectories and join what they computed. Every rank holds the whole list and makes the same
// calls; one rank is the ordinary case and communicates nothing.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/parallel/rank_mesh.h"
#include "weft/train/actor.h"
#include "weft/train/metrics.h"

namespace weft {

class DataParallel {
 public:
  explicit DataParallel(std::shared_ptr<const RankMesh> mesh = nullptr) : mesh_(std::move(mesh)) {}

  int rank() const { return mesh_ ? mesh_->world.rank() : 0; }
  int size() const { return mesh_ ? mesh_->world.size() : 1; }
  bool main() const { return rank() == 0; }

  // [begin, end) of n things for this rank: ceil chunks.
  std::pair<int64_t, int64_t> range(int64_t n) const { return range(n, rank()); }

  // Consecutive trajectories of each place in (replicate, fsdp), whose ranks work on the same; about as many tokens each. This rank's in
  // micro-batches, of which every rank has as many (the last ones may be empty).
  struct Share {
    std::vector<size_t> begin;  // [places + 1]: place r has [begin[r], begin[r+1])
    size_t mine = 0;            // this rank's place
    std::vector<MicroBatch> micro_batches;
  };
  Share share(MicroBatch list, int64_t max_tokens) const;

  // Collective.
  // `mine`: a value for each response token of this rank's share; the result: for each of the whole list.
  std::vector<float> gather_tokens(const Share& share, MicroBatch list, const std::vector<float>& mine) const;
  // Everybody's bytes, by rank.
  std::vector<std::vector<std::byte>> gather_bytes(std::span<const std::byte> mine) const;
  // The traces that this rank recorded for its share, for the whole list.
  std::vector<RoutingTrace> gather_traces(const Share& share, MicroBatch list, std::vector<RoutingTrace> mine) const;
  bool any(bool mine) const;
  double sum(double mine) const;
  double sum_over_places(double mine) const;  // one term a share
  double max(double mine) const;
  // What this rank has received so far, by "axis/purpose" [bytes]; empty for one rank. Not collective.
  std::map<std::string, double> received_bytes() const;
  // How long this rank has stood in communication so far [s]; 0 for one rank. Not collective.
  double seconds_waited() const { return mesh_ ? mesh_->world.seconds_waited() : 0; }
  // perf/comm_wait_share/mean and /max over the ranks: the share of timing_s/step that went by in communication, since
  // seconds_waited() was `before`. Collective; nothing for one rank.
  void report_wait_share(double before, MetricsRow& row) const;
  // Over the ranks whose shards make one copy of the parameters.
  void sum_over_shards(std::vector<double>& values) const;

 private:
  std::pair<int64_t, int64_t> range(int64_t n, int rank) const;

  std::shared_ptr<const RankMesh> mesh_;
};

}  // namespace weft
