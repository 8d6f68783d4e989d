#include "weft/mesh/placement.h"

#include <limits>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr int64_t kLeaves = 8;

// The boundaries of `ranks` shares of 8 leaves, in units of `unit` elements.
std::vector<int64_t> leaf_boundaries(int64_t length, int64_t ranks, int64_t unit) {
  if (ranks != 1 && ranks != 2 && ranks != 4 && ranks != 8)
    throw ValueError(fmt::format("{} ranks cannot share 8 leaves; 1, 2, 4 and 8 can", ranks));
  if (length < 0) throw ValueError(fmt::format("a length of {}", length));
  const int64_t units = length / unit + (length % unit != 0);
  std::vector<int64_t> out;
  for (int64_t r = 0; r < ranks; ++r) {
    const int64_t leaf = kLeaves * r / ranks;
    // leaf * units / 8 without overflow
    out.push_back(unit * (units / kLeaves * leaf + units % kLeaves * leaf / kLeaves));
  }
  out.push_back(length);
  return out;
}

}  // namespace

std::string to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kAvg: return "avg";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
  }
  WEFT_CHECK(false, "reduce op {}", static_cast<int>(op));
}

double identity(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return -0.0;
    case ReduceOp::kMin: return std::numeric_limits<double>::infinity();
    case ReduceOp::kMax: return -std::numeric_limits<double>::infinity();
    case ReduceOp::kAvg: break;
  }
  throw ValueError("an average has no identity");
}

std::vector<int64_t> contraction_boundaries(int64_t length, int64_t ranks) { return leaf_boundaries(length, ranks, 2); }
std::vector<int64_t> vocabulary_boundaries(int64_t length, int64_t ranks) { return leaf_boundaries(length, ranks, 16); }

}  // namespace weft
