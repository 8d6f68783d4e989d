#include "weft/train/sample_details.h"

#include "weft/base/error.h"

namespace weft {

void fetch_details(const Job& job, std::vector<ScoredSample>& samples, const std::vector<uint8_t>& wanted) {
  const size_t n = samples.size(), ranks = static_cast<size_t>(job.size()), me = static_cast<size_t>(job.rank());
  WEFT_CHECK(wanted.size() == n, "{} samples, {} wishes", n, wanted.size());
  if (ranks == 1) return;
  enum : uint8_t { kHas = 1, kWants = 2 };
  std::vector<uint8_t> mine(n);
  for (size_t i = 0; i < n; ++i) mine[i] = samples[i].has_details ? kHas : wanted[i] ? kWants : 0;
  const std::vector<std::vector<std::byte>> all = job.gather_bytes(std::as_bytes(std::span(mine)));
  std::vector<std::vector<size_t>> to(ranks), from(ranks);
  for (size_t i = 0; i < n; ++i) {
    std::vector<size_t> holders;
    for (size_t r = 0; r < ranks; ++r)
      if (std::to_integer<uint8_t>(all[r].at(i)) == kHas) holders.push_back(r);
    size_t turn = i;
    for (size_t r = 0; r < ranks; ++r) {
      if (std::to_integer<uint8_t>(all[r].at(i)) != kWants) continue;
      WEFT_CHECK(!holders.empty(), "nobody has the details of sample {}", i);
      const size_t source = holders[turn++ % holders.size()];
      if (source == me) to[r].push_back(i);
      if (r == me) from[source].push_back(i);
    }
  }
  std::vector<std::vector<std::byte>> parcels(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    if (to[r].empty()) continue;
    std::vector<Trajectory> list;
    for (size_t i : to[r]) list.push_back(samples[i].trajectory);
    parcels[r] = serialize_trajectories(list);
  }
  parcels = job.exchange_bytes(parcels);
  for (size_t r = 0; r < ranks; ++r) {
    if (from[r].empty()) continue;
    std::vector<Trajectory> list = deserialize_trajectories(parcels[r], "a peer's samples");
    WEFT_CHECK(list.size() == from[r].size(), "{} of {} samples from rank {}", list.size(), from[r].size(), r);
    for (size_t k = 0; k < list.size(); ++k) {
      ScoredSample& s = samples[from[r][k]];
      if (!s.trajectory.routing) s.trajectory.routing = std::move(list[k].routing);  // R2's are the actor's own
      s.trajectory.kept = std::move(list[k].kept);
      s.has_details = true;
    }
  }
}

}  // namespace weft
