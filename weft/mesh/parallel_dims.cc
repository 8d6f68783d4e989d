#include "weft/mesh/parallel_dims.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string_view>

#include "weft/base/config.h"
#include "weft/base/error.h"

namespace weft {
namespace {

constexpr int64_t kMaxWorld = 1 << 20;

// Other programs' names for the same thing.
const std::map<std::string, std::string, std::less<>> kOtherNames = {
    {"dp", "fsdp (or replicate for whole copies)"},
    {"dp_shard", "fsdp"},
    {"dp_replicate", "replicate"},
    {"ddp", "replicate"},
    {"hsdp", "replicate with fsdp"},
    {"sp", "tp"},
    {"pp", "fsdp: there are no pipeline stages here"},
    {"etp", "ep: experts are cut by ep only"},
    {"efsdp", "ep: efsdp follows from it"},
};

std::string_view strip(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

std::string divisors(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) out.push_back(d);
  return fmt::format("{}", fmt::join(out, ", "));
}

class Parser {
 public:
  Parser(const std::string& text, const std::vector<std::string>& own_axes, bool rollout = false)
      : text_(text), rollout_(rollout) {
    if (rollout)
      known_ = {"dp", "tp", "ep"};
    else
      known_ = {"replicate", "fsdp", "cp", "tp", "ep"};
    built_in_ = known_.size();
    known_.insert(known_.end(), own_axes.begin(), own_axes.end());
  }

  ParallelDims parse(int64_t world) {
    if (world < 0 || world > kMaxWorld) fail(fmt::format("a world of {} ranks; 1 to {} are possible", world, kMaxWorld));
    world_ = world;
    if (!strip(text_).empty()) read_entries();
    ParallelDims dims;
    int64_t* factors[] = {&dims.replicate, &dims.fsdp, &dims.cp, &dims.tp};
    const char* names[] = {"replicate", rollout_ ? "dp" : "fsdp", "cp", "tp"};
    int64_t product = 1;
    int64_t* open = nullptr;  // the factor that is -1
    for (int i = 0; i < 4; ++i) {
      *factors[i] = size_of(names[i]);
      if (*factors[i] < 0)
        open = factors[i];
      else if (__builtin_mul_overflow(product, *factors[i], &product) || product > kMaxWorld)
        fail(fmt::format("more than {} ranks", kMaxWorld));
    }
    if (open) {
      if (world == 0) fail("-1 needs the number of ranks, and that is not known here: write the size");
      if (world % product != 0)
        fail(fmt::format("the other axes multiply to {}, which does not divide the {} ranks there are (divisors: {})", product,
                         world, divisors(world)));
      *open = world / product;
    } else if (world != 0 && product != world) {
      fail(fmt::format("{} is {}, but there {} {} rank{}: {}", factors_text(dims), product, world == 1 ? "is" : "are", world,
                       world == 1 ? "" : "s", what_would_fit(dims, world)));
    }
    dims.ep = rollout_ && !has("ep") ? dims.tp : view_size("ep", dims);
    for (size_t i = built_in_; i < known_.size(); ++i) dims.own.emplace_back(known_[i], view_size(known_[i], dims));
    return dims;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw UsageError(fmt::format("mesh '{}': {}", text_, what)); }

  void read_entries() {
    std::string_view rest = text_;
    bool more = true;
    while (more) {
      const size_t comma = rest.find(',');
      more = comma != std::string_view::npos;
      read_entry(strip(rest.substr(0, comma)));
      if (more) rest.remove_prefix(comma + 1);
    }
    std::string open;
    for (const auto& [name, size] : entries_) {
      if (size != -1) continue;
      if (!open.empty()) fail(fmt::format("both {} and {} are -1; only one axis can be filled in", open, name));
      open = name;
    }
  }

  void read_entry(std::string_view entry) {
    const size_t equals = entry.find('=');
    const std::string name(strip(entry.substr(0, equals)));
    const std::string_view value = equals == std::string_view::npos ? "" : strip(entry.substr(equals + 1));
    if (name.empty() || value.empty()) fail(fmt::format("'{}' is not axis=size (example: fsdp=4,ep=2)", entry));
    check_name(name);
    int64_t size = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), size);
    if (error == std::errc::result_out_of_range) fail(fmt::format("the size {} of {} is too large", value, name));
    if (error != std::errc() || end != value.data() + value.size())
      fail(fmt::format("the size '{}' of {} is no number", value, name));
    if (size < 1 && size != -1) fail(fmt::format("{} has size {}; sizes are 1 or more, or -1 for the rest", name, size));
    for (const auto& [other, other_size] : entries_)
      if (other == name) fail(fmt::format("{} is there twice, as {} and {}", name, other_size, size));
    entries_.emplace_back(name, size);
  }

  void check_name(const std::string& name) const {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) return;
    std::string hint;
    if (const auto other = kOtherNames.find(name); other != kOtherNames.end() && !rollout_) {
      hint = fmt::format("; did you mean {}?", other->second);
    } else {
      const auto closest = std::min_element(known_.begin(), known_.end(), [&](const std::string& a, const std::string& b) {
        return edit_distance(name, a) < edit_distance(name, b);
      });
      if (edit_distance(name, *closest) <= 2) hint = fmt::format("; did you mean {}?", *closest);
    }
    fail(fmt::format("unknown axis '{}'{} (axes: {})", name, hint, fmt::join(known_, ", ")));
  }

  bool has(const std::string& name) const {
    return std::any_of(entries_.begin(), entries_.end(), [&](const auto& e) { return e.first == name; });
  }

  // The factors of the world, as written: "fsdp=2 x cp=1 x tp=2".
  std::string factors_text(const ParallelDims& d) const {
    if (rollout_) return fmt::format("dp={} x tp={}", d.fsdp, d.tp);
    return fmt::format("replicate={} x fsdp={} x cp={} x tp={}", d.replicate, d.fsdp, d.cp, d.tp);
  }

  int64_t size_of(const std::string& name) const {
    for (const auto& [other, size] : entries_)
      if (other == name) return size;
    return 1;
  }

  int64_t view_size(const std::string& name, const ParallelDims& dims) const {
    const int64_t n = dims.ranks_per_replica(), size = size_of(name);
    if (size == -1) return n;
    if (n % size != 0)
      fail(fmt::format("{}={} takes its ranks from {} = {} and does not divide it; {}", name, size,
                       rollout_ ? factors_text(dims) : fmt::format("fsdp={} x cp={} x tp={}", dims.fsdp, dims.cp, dims.tp), n,
                       world_ == 0 && n == 1 ? fmt::format("write {}={},{}={}", data_axis(), size, name, size)
                                             : fmt::format("{} can be {}", name, divisors(n))));
    return size;
  }

  // The change of one axis that makes the product the world.
  std::string what_would_fit(const ParallelDims& dims, int64_t world) const {
    std::vector<std::string> fits;
    if (const int64_t others = dims.replicate * dims.cp * dims.tp; world % others == 0)
      fits.push_back(fmt::format("{}={}", data_axis(), world / others));
    if (const int64_t others = dims.ranks_per_replica(); !rollout_ && world % others == 0)
      fits.push_back(fmt::format("replicate={}", world / others));
    if (const int64_t others = dims.replicate * dims.fsdp * dims.cp; world % others == 0 && 8 % (world / others) == 0)
      fits.push_back(fmt::format("tp={}", world / others));
    if (fits.empty()) return fmt::format("each size has to divide {} (divisors: {})", world, divisors(world));
    return fmt::format("{} would fit", fmt::join(fits, " or "));
  }

  const char* data_axis() const { return rollout_ ? "dp" : "fsdp"; }

  const std::string& text_;
  bool rollout_;
  int64_t world_ = 0;
  std::vector<std::string> known_;  // the built-in axes, then own ones
  size_t built_in_ = 0;
  std::vector<std::pair<std::string, int64_t>> entries_;
};

// replicate, then what a view leaves of a replica's ranks, then the view.
DeviceMesh view(const ParallelDims& dims, const std::string& rest, const std::string& axis, int64_t size) {
  return dims.mesh().flatten({"fsdp", "cp", "tp"}, "all").unflatten("all", {rest, axis}, {dims.ranks_per_replica() / size, size});
}

}  // namespace

ParallelDims parse_parallel_dims(const std::string& text, int64_t world, const std::vector<std::string>& own_axes) {
  return Parser(text, own_axes).parse(world);
}

DeviceMesh ParallelDims::mesh() const { return DeviceMesh({"replicate", "fsdp", "cp", "tp"}, {replicate, fsdp, cp, tp}); }
DeviceMesh ParallelDims::dense_mesh() const { return mesh().flatten({"fsdp", "cp"}, "fsdp"); }
DeviceMesh ParallelDims::expert_mesh() const { return view(*this, "efsdp", "ep", ep); }

DeviceMesh ParallelDims::view_mesh(const std::string& axis) const {
  for (const auto& [name, size] : own)
    if (name == axis) return view(*this, name + "_fsdp", name, size);
  throw ValueError(fmt::format("mesh '{}' has no own axis '{}'", to_string(), axis));
}

std::string ParallelDims::to_string() const {
  std::vector<std::pair<std::string, int64_t>> sizes = {
      {"replicate", replicate}, {"fsdp", fsdp}, {"cp", cp}, {"tp", tp}, {"ep", ep}};
  sizes.insert(sizes.end(), own.begin(), own.end());
  std::string out;
  for (const auto& [name, size] : sizes)
    if (size != 1) out += fmt::format("{}{}={}", out.empty() ? "" : ",", name, size);
  return out.empty() ? "fsdp=1" : out;
}

ParallelDims parse_rollout_dims(const std::string& text, int64_t world, const std::vector<std::string>& own_axes) {
  return Parser(text, own_axes, true).parse(world);
}

std::string rollout_text(const ParallelDims& dims) {
  std::string out = fmt::format("dp={}", dims.fsdp);
  if (dims.tp != 1) out += fmt::format(",tp={}", dims.tp);
  if (dims.ep != dims.tp) out += fmt::format(",ep={}", dims.ep);
  for (const auto& [name, size] : dims.own)
    if (size != 1) out += fmt::format(",{}={}", name, size);
  return out;
}

std::vector<int> parse_ranks(const std::string& text, const std::string& key) {
  const auto fail = [&](const std::string& what) {
    return UsageError(fmt::format("{} = \"{}\": {} (example: \"0-3\" or \"0,2,5-7\")", key, text, what));
  };
  std::set<int> ranks;
  const char *at = text.data(), *end = text.data() + text.size();
  const auto number = [&] {
    while (at < end && *at == ' ') ++at;
    int value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < 0 || value >= kMaxWorld) throw fail("a rank is a number from 0 on");
    at = next;
    while (at < end && *at == ' ') ++at;
    return value;
  };
  for (;;) {
    const int first = number();
    int last = first;
    if (at < end && *at == '-') {
      ++at;
      last = number();
      if (last < first) throw fail(fmt::format("{}-{} goes backwards", first, last));
    }
    for (int r = first; r <= last; ++r)
      if (!ranks.insert(r).second) throw fail(fmt::format("rank {} is there twice", r));
    if (at == end) break;
    if (*at++ != ',') throw fail("ranks are separated by commas");
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace weft
