#include "weft/train/plan_neighbours.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace weft {
namespace {

double steps(int64_t from, int64_t to) { return std::abs(std::log2(static_cast<double>(to) / static_cast<double>(from))); }

// Changes of axes.
double distance(const ParallelDims& a, const ParallelDims& b) {
  return steps(a.replicate, b.replicate) + steps(a.fsdp, b.fsdp) + steps(a.cp, b.cp) + 1.01 * steps(a.tp, b.tp) +
         0.99 * steps(a.ep, b.ep);
}

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> low, high;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    low.push_back(d);
    if (d * d != n) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

// All meshes of a world; replicate and cp stay as they are where they divide it, else 1.
void add_meshes(const ParallelDims& dims, int64_t world, bool rollout, int64_t experts, std::vector<ParallelDims>& out) {
  const auto kept = [&](int64_t size) { return rollout || world % size != 0 ? int64_t{1} : size; };
  for (const int64_t replicate : {kept(dims.replicate), int64_t{1}})
    for (const int64_t cp : {kept(dims.cp), int64_t{1}, kept(dims.cp * 2)})
      for (const int64_t tp : {1, 2, 4, 8}) {
        if (world % (replicate * cp * tp) != 0) continue;
        ParallelDims d = dims;
        d.replicate = replicate, d.cp = cp, d.tp = tp, d.fsdp = world / (replicate * cp * tp);
        bool own_fit = true;
        for (const auto& [axis, size] : d.own) own_fit &= d.ranks_per_replica() % size == 0;
        if (!own_fit) continue;
        for (const int64_t ep : experts > 0 ? divisors(d.ranks_per_replica()) : std::vector<int64_t>{1}) {
          d.ep = ep;
          if (experts > 0 && ep > 1 && experts % ep != 0) continue;  // every rank holds as many
          if (std::find(out.begin(), out.end(), d) == out.end()) out.push_back(d);
        }
      }
}

}  // namespace

std::vector<ParallelDims> nearest_meshes(const ParallelDims& dims, bool rollout, int64_t experts, bool grow, size_t count,
                                         size_t tries, const std::function<bool(const ParallelDims&)>& works) {
  std::vector<ParallelDims> out;
  for (int64_t times = 1; out.empty() && times <= (grow ? 16 : 1) && dims.world() * times <= 1 << 14; times *= 2) {
    std::vector<ParallelDims> candidates;
    add_meshes(dims, dims.world() * times, rollout, experts, candidates);
    std::erase(candidates, dims);
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](const ParallelDims& a, const ParallelDims& b) { return distance(dims, a) < distance(dims, b); });
    if (candidates.size() > tries) candidates.resize(tries);
    for (const ParallelDims& d : candidates)
      if (out.size() < count && works(d)) out.push_back(d);
  }
  return out;
}

std::string mesh_list(const std::vector<ParallelDims>& meshes, bool rollout) {
  std::vector<std::string> out;
  for (const ParallelDims& d : meshes) out.push_back(rollout ? rollout_text(d) : d.to_string());
  return fmt::format("{}", fmt::join(out, " or "));
}

}  // namespace weft
