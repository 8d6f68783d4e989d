#pragma once
// All ranks of a job, whatever their roles: what they tell each other between the phases of a step. One rank is the ordinary case
// and communicates nothing.

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/comm/communicator.h"
#include "weft/train/metrics.h"

namespace weft {

class Job {
 public:
  // Rank `main` writes what there is one of. Without a world there is one rank.
  explicit Job(std::optional<Communicator> world = std::nullopt, int main = 0) : world_(std::move(world)), main_(main) {}

  int rank() const { return world_ ? world_->rank() : 0; }
  int size() const { return world_ ? world_->size() : 1; }
  bool main() const { return rank() == main_; }
  const Communicator* world() const { return size() > 1 ? &*world_ : nullptr; }

  // Collective, all of them.
  bool any(bool mine) const;
  double sum(double mine) const;
  double max(double mine) const;
  void sum(std::vector<double>& values) const;  // element by element; as many on all
  // Everybody's bytes, by rank.
  std::vector<std::vector<std::byte>> gather_bytes(std::span<const std::byte> mine) const;
  // mine[r] goes to rank r; the result: what rank r had for this one.
  std::vector<std::vector<std::byte>> exchange_bytes(const std::vector<std::vector<std::byte>>& mine) const;
  // Values of rank `from`, which replace the others'.
  void broadcast(std::vector<int64_t>& values, int from) const;
  void broadcast(std::vector<std::vector<float>>& rows, int from) const;
  void broadcast(std::vector<std::vector<double>>& rows, int from) const;
  void broadcast(std::vector<std::vector<uint8_t>>& rows, int from) const;
  // Runs a phase where `here`; where a stop ends it on some ranks (StoppedError), all ranks throw one.
  void phase(bool here, const std::function<void()>& fn) const;
  // perf/comm_wait_share/mean and /max over the ranks: the share of timing_s/step that went by in communication, since
  // seconds_waited() was `before`. Nothing for one rank.
  void report_wait_share(double before, MetricsRow& row) const;

  // Not collective. What this rank has received so far, by "axis/purpose" [bytes]; empty for one rank.
  std::map<std::string, double> received_bytes() const;
  // How long this rank has stood in communication so far [s]; 0 for one rank.
  double seconds_waited() const { return world_ ? world_->seconds_waited() : 0; }

 private:
  template <class T>
  void broadcast_rows(std::vector<std::vector<T>>& rows, DType dtype, int from) const;

  std::optional<Communicator> world_;
  int main_;
};

// Everybody's bytes, by rank. Collective over the group.
std::vector<std::vector<std::byte>> gather_bytes(const Communicator& group, std::span<const std::byte> mine);

}  // namespace weft
