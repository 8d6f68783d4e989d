#pragma once
// Weights from the trainer's shards to the rollout's, by a plan made once (docs/refit.md). Every rank receives exactly the bytes
// that it keeps and lacks; nothing is gathered.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/comm/communicator.h"
#include "weft/mesh/refit_plan.h"
#include "weft/refit/row_scales.h"
#include "weft/refit/tensor_part.h"

namespace weft {

// What arrived is not what was sent. Thrown on all ranks alike; the destinations are no longer valid.
class RefitError : public Error {
 public:
  using Error::Error;
};

struct RefitOptions {
  int64_t watermark = int64_t{64} << 20;  // bytes in flight beyond the destinations, on each rank
  bool verify = true;
  // After each bucket, on every rank.
  std::function<void(int64_t done, int64_t of)> progress = {};
};

struct RefitReport {
  int64_t received = 0, sent = 0;  // bytes between ranks, as the communicator counts them
  int64_t copied = 0;              // bytes made from the rank's own memory
  int64_t peak_in_flight = 0;      // bytes beyond the destinations
  int64_t buckets = 0;
  double seconds = 0;
  std::vector<uint64_t> hashes;  // of each whole tensor, as sent; empty without verification
};

class Refit {
 public:
  // Collective in the sense that all ranks give the same tensors (whose ranks are members of `ranks`), dtypes and options; does
  // not communicate. ValueError where the plan has a hole, or the watermark is too small for an element.
  Refit(std::vector<RefitTensor> tensors, const Communicator& ranks, RefitOptions options);

  const RefitPlan& plan() const { return plan_; }
  const std::vector<RefitTensor>& tensors() const { return tensors_; }
  int64_t num_buckets() const { return std::ssize(buckets_); }

  // Collective. One source and one destination a tensor. A destination of the same memory as the source is left as it is; else
  // they do not overlap. fp32 becomes bf16 on the sender where the destination is bf16, and int8 where it is int8: with the
  // scales of the whole tensor's rows (row_scales.h), which the destination gets too. ValueError, before anything is sent, for
  // parts that do not fit, and for an int8 tensor with a value that is not finite; RefitError. One run at a time.
  RefitReport run(std::span<const TensorPart> sources, std::span<const TensorPart> destinations);

 private:
  struct Piece {
    size_t tensor = 0;
    Transfer transfer;
  };
  struct Bucket {
    std::vector<Piece> sends, receives;  // of this rank; sorted alike at both ends
  };
  struct Flight;   // a bucket under way
  struct Staging;  // memory of such
  struct Checks;   // hashes of what was sent and received

  void check_parts(std::span<const TensorPart> sources, std::span<const TensorPart> destinations) const;
  void copy_own(std::span<const TensorPart> sources, std::span<const TensorPart> destinations, Checks& checks,
                RefitReport& report) const;
  std::unique_ptr<Flight> prepare(const Bucket& bucket, std::span<const TensorPart> sources,
                                  std::span<const TensorPart> destinations) const;
  void launch(Flight& flight, std::span<const TensorPart> sources, Staging& staging) const;
  void hash_sources(std::span<const TensorPart> sources, Checks& checks) const;
  void compare(std::span<const TensorPart> sources, const Checks& checks, RefitReport& report) const;
  WireType wire(size_t tensor) const { return {tensors_[tensor].dtype, tensors_[tensor].shape, scales_.of(tensor)}; }
  std::string where_wrong(std::span<const TensorPart> sources, const Checks& checks, std::pair<size_t, size_t> wrong) const;

  std::vector<RefitTensor> tensors_;
  Communicator ranks_;
  RefitOptions options_;
  RefitPlan plan_;
  std::vector<Bucket> buckets_;
  std::vector<Piece> own_;  // what this rank makes from its own memory
  RowScales scales_;        // while it runs
  bool running_ = false;
};

}  // namespace weft
