#include "weft/mesh/sharding_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "weft/base/error.h"
#include "weft/mesh/choose_dim.h"

namespace weft {
namespace {

using Kind = PlanEntry::Kind;

std::vector<std::string> plan_axes(const ParallelDims& dims) {
  std::vector<std::string> axes{"fsdp", "tp", "ep"};
  for (const auto& [name, size] : dims.own) axes.push_back(name);
  return axes;
}

// Which sizes of tp divide the heads on leaf boundaries.
std::vector<int64_t> sizes_that_work(int64_t length, int64_t heads) {
  std::vector<int64_t> out;
  for (const int64_t ranks : {1, 2, 4, 8}) {
    const std::vector<int64_t> at = contraction_boundaries(length, ranks);
    if (heads % ranks == 0 && std::all_of(at.begin(), at.end(), [&](int64_t b) { return b % (length / heads) == 0; }))
      out.push_back(ranks);
  }
  return out;
}

[[noreturn]] void refuse(const std::string& name, const PlanEntry& e, int64_t ranks, const std::string& why) {
  throw UsageError(fmt::format("{}={}: {} {}", e.axis, ranks, name, why));
}

// The cut of one entry; for shared heads the mesh's axis is split first.
Layout apply(const Layout& layout, const PlanEntry& e, const std::string& name, std::vector<std::string>& partial_axes) {
  const int64_t ranks = layout.mesh().size(e.axis);
  if (ranks == 1) return layout;
  if (e.dim < 0 || e.dim >= layout.dims()) refuse(name, e, ranks, fmt::format("has no dim {}", e.dim));
  const int64_t length = layout.shape()[static_cast<size_t>(e.dim)];
  switch (e.shares) {
    case Shares::kChunks: return layout.with_cut({.axis = e.axis, .dim = e.dim});
    case Shares::kVocabulary:
      if (ranks != 2 && ranks != 4 && ranks != 8)
        refuse(name, e, ranks, fmt::format("is cut on eighths of the vocabulary; {} can be 1, 2, 4 or 8", e.axis));
      return layout.with_cut({.axis = e.axis, .dim = e.dim, .boundaries = vocabulary_boundaries(length, ranks)});
    case Shares::kContraction: {
      if (ranks != 2 && ranks != 4 && ranks != 8)
        refuse(name, e, ranks, fmt::format("is summed in eighths; {} can be 1, 2, 4 or 8", e.axis));
      if (e.heads > 0) {
        const std::vector<int64_t> fit = sizes_that_work(length, e.heads);
        if (std::find(fit.begin(), fit.end(), ranks) == fit.end())
          refuse(
              name, e, ranks,
              fmt::format("has {} heads, which cannot be shared out whole; {} can be {}", e.heads, e.axis, fmt::join(fit, ", ")));
      }
      return layout.with_cut({.axis = e.axis, .dim = e.dim, .boundaries = contraction_boundaries(length, ranks)});
    }
    case Shares::kHeads: {
      if (e.heads % ranks == 0) return layout.with_cut({.axis = e.axis, .dim = e.dim});
      if (ranks % e.heads != 0) {
        std::vector<int64_t> fit;
        for (const int64_t n : {1, 2, 4, 8})
          if (e.heads % n == 0 || n % e.heads == 0) fit.push_back(n);
        refuse(name, e, ranks,
               fmt::format("has {} key/value heads, which {} ranks cannot share in equal parts or copies; tp can be {}", e.heads,
                           ranks, fmt::join(fit, ", ")));
      }
      const std::string heads = e.axis + "_heads", copies = e.axis + "_copies";
      Layout split =
          Layout::replicated(layout.shape(), layout.mesh().unflatten(e.axis, {heads, copies}, {e.heads, ranks / e.heads}));
      for (const Cut& c : layout.cuts()) split = split.with_cut(c);
      partial_axes.push_back(copies);
      return e.heads == 1 ? split : split.with_cut({.axis = heads, .dim = e.dim});
    }
  }
  return layout;
}

}  // namespace

PlanEntry cut(std::string pattern, std::string axis, int64_t dim, Shares shares, int64_t heads) {
  return {std::move(pattern), std::move(axis), Kind::kCut, dim, shares, heads};
}
PlanEntry replicated(std::string pattern, std::string axis) {
  return {std::move(pattern), std::move(axis), Kind::kReplicated, 0, Shares::kChunks, 0};
}
PlanEntry replicated_partial(std::string pattern, std::string axis) {
  return {std::move(pattern), std::move(axis), Kind::kReplicatedPartial, 0, Shares::kChunks, 0};
}

const PlanEntry* find_entry(const ShardingPlan& plan, const std::string& axis, const std::string& name) {
  const auto it =
      std::find_if(plan.rbegin(), plan.rend(), [&](const PlanEntry& e) { return e.axis == axis && matches(e.pattern, name); });
  return it == plan.rend() ? nullptr : &*it;
}

PlanEntry parse_plan_entry(const std::string& text) {
  const auto refuse_entry = [&](const std::string& why) -> UsageError {
    return UsageError(
        fmt::format("plan entry \"{}\": {}; expected \"PATTERN AXIS PLACEMENT\", where PLACEMENT is cut(DIM), replicated or "
                    "replicated-partial",
                    text, why));
  };
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; in >> word;) words.push_back(word);
  if (words.size() != 3) throw refuse_entry(fmt::format("{} words", words.size()));
  const std::string& what = words[2];
  if (what == "replicated") return replicated(words[0], words[1]);
  if (what == "replicated-partial") {
    if (words[1] == "fsdp") throw refuse_entry("fsdp sums gradients in any case: replicated is the word");
    return replicated_partial(words[0], words[1]);
  }
  if (what.size() == 6 && what.starts_with("cut(") && what.back() == ')' && what[4] >= '0' && what[4] <= '9')
    return cut(words[0], words[1], what[4] - '0');
  throw refuse_entry(fmt::format("\"{}\" is no placement", what));
}

std::string describe(const PlanEntry& e) {
  return fmt::format("{}: {}", e.axis,
                     e.kind == Kind::kCut          ? fmt::format("cut({})", e.dim)
                     : e.kind == Kind::kReplicated ? "replicated"
                                                   : "replicated-partial");
}

bool matches(const std::string& pattern, const std::string& name) {
  // Greedy with one point to go back to: the last star and what it has taken so far.
  size_t p = 0, n = 0, star = std::string::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*')
      star = p++, taken = n;
    else if (p < pattern.size() && pattern[p] == name[n])
      ++p, ++n;
    else if (star != std::string::npos)
      p = star + 1, n = ++taken;
    else
      return false;
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Placement place_parameter(const ShardingPlan& plan, const ParallelDims& dims, const std::string& name,
                          const std::vector<int64_t>& shape) {
  // The mesh that its axes are of.
  DeviceMesh mesh = dims.dense_mesh();
  std::string fsdp_axis = "fsdp";
  std::vector<const PlanEntry*> entries;
  if (find_entry(plan, "ep", name)) mesh = dims.expert_mesh(), fsdp_axis = "efsdp";
  for (const auto& [axis, size] : dims.own)
    if (find_entry(plan, axis, name)) mesh = dims.view_mesh(axis), fsdp_axis = axis + "_fsdp";
  for (const std::string& axis : mesh.axes()) {
    if (axis == "replicate" || axis == fsdp_axis) continue;
    const PlanEntry* e = find_entry(plan, axis, name);
    if (e) {
      entries.push_back(e);
    } else if (mesh.size(axis) > 1) {
      std::set<std::string> patterns;
      for (const PlanEntry& entry : plan)
        if (entry.axis == axis) patterns.insert(entry.pattern);
      throw UsageError(fmt::format("the plan says nothing about {} on {}: add an entry; there are {}", name, axis,
                                   patterns.empty() ? "none for this axis" : fmt::format("{}", fmt::join(patterns, ", "))));
    }
  }
  std::vector<std::string> partial_axes;
  Layout computed = Layout::replicated(shape, mesh);
  for (const PlanEntry* e : entries) {
    if (e->kind == Kind::kCut)
      computed = apply(computed, *e, name, partial_axes);
    else if (e->kind == Kind::kReplicatedPartial && mesh.size(e->axis) > 1)
      partial_axes.push_back(e->axis);
  }
  DimChoice choice = choose_dim(computed, fsdp_axis);
  if (const PlanEntry* e = find_entry(plan, "fsdp", name)) {
    if (e->kind == Kind::kCut && e->dim >= computed.dims())
      throw UsageError(fmt::format("plan entry {} (fsdp): {} has no dim {}", e->pattern, name, e->dim));
    choice = {e->kind == Kind::kCut ? std::optional(e->dim) : std::nullopt, fmt::format("by the entry {}", e->pattern)};
  }
  Layout layout = choice.dim ? computed.with_cut({.axis = fsdp_axis, .dim = *choice.dim}) : computed;
  return {std::move(computed), std::move(layout), std::move(fsdp_axis), std::move(partial_axes), choice.reason};
}

void check_plan(const ShardingPlan& plan, const ParallelDims& dims, std::span<const std::string> names) {
  const std::vector<std::string> axes = plan_axes(dims);
  for (const PlanEntry& e : plan) {
    if (std::find(axes.begin(), axes.end(), e.axis) == axes.end())
      throw UsageError(
          fmt::format("the plan's entry for {} names the axis \"{}\": there are {}", e.pattern, e.axis, fmt::join(axes, ", ")));
    if (std::none_of(names.begin(), names.end(), [&](const std::string& n) { return matches(e.pattern, n); }))
      throw UsageError(fmt::format("the plan's entry {} ({}) matches no parameter; the first of {} is {}", e.pattern, e.axis,
                                   names.size(), names.empty() ? "none" : names[0]));
  }
}

}  // namespace weft
