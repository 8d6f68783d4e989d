#include "weft/mesh/device_mesh.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "weft/base/error.h"

namespace weft {

struct DeviceMesh::Data {
  struct Ranks {
    std::vector<int64_t> ranks;
    std::vector<std::pair<int64_t, int64_t>> positions;  // (rank, index in ranks), ascending
  };
  std::vector<std::string> axes;
  std::vector<int64_t> sizes;
  std::shared_ptr<const Ranks> of;  // shared by meshes that are views of one: of 65536 ranks each would cost milliseconds
};

namespace {

// The number of ranks; ValueError for a size below 1 or a product that no machine has.
int64_t product(const std::vector<int64_t>& sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) {
    if (s < 1) throw ValueError(fmt::format("a mesh axis has size {}; sizes are 1 or more", s));
    if (__builtin_mul_overflow(n, s, &n) || n > INT32_MAX)
      throw ValueError(fmt::format("a mesh of sizes {} has too many ranks", fmt::join(sizes, " x ")));
  }
  return n;
}

// How many ranks meshes of these axes have. ValueError.
int64_t check_axes(const std::vector<std::string>& axes, const std::vector<int64_t>& sizes) {
  if (axes.size() != sizes.size()) throw ValueError(fmt::format("a mesh has {} axes and {} sizes", axes.size(), sizes.size()));
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].empty()) throw ValueError("a mesh axis has no name");
    if (std::count(axes.begin(), axes.end(), axes[i]) > 1)
      throw ValueError(fmt::format("mesh axis '{}' is there twice", axes[i]));
  }
  return product(sizes);
}

std::vector<int64_t> ascending(int64_t n) {
  std::vector<int64_t> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

DeviceMesh::DeviceMesh() : DeviceMesh({}, {}, {0}) {}

DeviceMesh::DeviceMesh(std::vector<std::string> axes, std::vector<int64_t> sizes)
    : DeviceMesh(std::move(axes), sizes, ascending(product(sizes))) {}

DeviceMesh::DeviceMesh(std::vector<std::string> axes, std::vector<int64_t> sizes, std::vector<int64_t> ranks) {
  const int64_t n = check_axes(axes, sizes);
  if (static_cast<int64_t>(ranks.size()) != n)
    throw ValueError(fmt::format("a mesh of {} = {} ranks was given {}", fmt::join(sizes, " x "), n, ranks.size()));
  std::vector<std::pair<int64_t, int64_t>> positions;
  positions.reserve(ranks.size());
  for (int64_t i = 0; i < n; ++i) positions.emplace_back(ranks[i], i);
  if (!std::is_sorted(positions.begin(), positions.end())) std::sort(positions.begin(), positions.end());
  if (positions.front().first < 0) throw ValueError(fmt::format("a mesh has rank {}", positions.front().first));
  for (int64_t i = 1; i < n; ++i)
    if (positions[i].first == positions[i - 1].first)
      throw ValueError(fmt::format("rank {} is in a mesh twice", positions[i].first));
  data_ = std::make_shared<Data>(Data{std::move(axes), std::move(sizes),
                                      std::make_shared<Data::Ranks>(Data::Ranks{std::move(ranks), std::move(positions)})});
}

const std::vector<std::string>& DeviceMesh::axes() const { return data_->axes; }
const std::vector<int64_t>& DeviceMesh::sizes() const { return data_->sizes; }
const std::vector<int64_t>& DeviceMesh::ranks() const { return data_->of->ranks; }

size_t DeviceMesh::axis_index(const std::string& axis) const {
  const auto at = std::find(axes().begin(), axes().end(), axis);
  if (at == axes().end()) throw ValueError(fmt::format("mesh {} has no axis '{}'", to_string(), axis));
  return at - axes().begin();
}

int64_t DeviceMesh::position(int64_t rank) const {
  const auto at =
      std::lower_bound(data_->of->positions.begin(), data_->of->positions.end(), std::pair<int64_t, int64_t>(rank, 0));
  return at == data_->of->positions.end() || at->first != rank ? -1 : at->second;
}

int64_t DeviceMesh::checked_position(int64_t rank) const {
  const int64_t at = position(rank);
  if (at < 0) throw ValueError(fmt::format("rank {} is not in mesh {} of {} ranks", rank, to_string(), num_ranks()));
  return at;
}

int64_t DeviceMesh::stride(size_t axis) const {
  int64_t n = 1;
  for (size_t i = axis + 1; i < sizes().size(); ++i) n *= sizes()[i];
  return n;
}

bool DeviceMesh::has(const std::string& axis) const { return std::find(axes().begin(), axes().end(), axis) != axes().end(); }
int64_t DeviceMesh::size(const std::string& axis) const { return sizes()[axis_index(axis)]; }
bool DeviceMesh::contains(int64_t rank) const { return position(rank) >= 0; }

int64_t DeviceMesh::coordinate(int64_t rank, const std::string& axis) const {
  const size_t i = axis_index(axis);
  return checked_position(rank) / stride(i) % sizes()[i];
}

std::vector<int64_t> DeviceMesh::coordinates(int64_t rank) const {
  const int64_t at = checked_position(rank);
  std::vector<int64_t> out;
  for (size_t i = 0; i < sizes().size(); ++i) out.push_back(at / stride(i) % sizes()[i]);
  return out;
}

std::vector<int64_t> DeviceMesh::group(int64_t rank, const std::string& axis) const { return slice({axis}, rank).ranks(); }

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& wanted, int64_t rank) const {
  std::vector<int64_t> sliced_sizes, positions{checked_position(rank)};
  for (const std::string& axis : wanted) {
    const size_t i = axis_index(axis);
    sliced_sizes.push_back(sizes()[i]);
    // Every position so far becomes a row along this axis.
    std::vector<int64_t> next;
    for (int64_t p : positions) {
      const int64_t first = p - p / stride(i) % sizes()[i] * stride(i);
      for (int64_t c = 0; c < sizes()[i]; ++c) next.push_back(first + c * stride(i));
    }
    positions = std::move(next);
  }
  for (int64_t& p : positions) p = ranks()[p];
  return DeviceMesh(wanted, std::move(sliced_sizes), std::move(positions));
}

DeviceMesh DeviceMesh::flatten(const std::vector<std::string>& joined, const std::string& name) const {
  if (joined.empty()) throw ValueError("no axes to flatten");
  const size_t first = axis_index(joined[0]);
  int64_t n = 1;
  for (size_t i = 0; i < joined.size(); ++i) {
    if (axis_index(joined[i]) != first + i)
      throw ValueError(fmt::format("axes {} are no neighbours in mesh {}", fmt::join(joined, ", "), to_string()));
    n *= size(joined[i]);
  }
  std::vector<std::string> new_axes = axes();
  std::vector<int64_t> new_sizes = sizes();
  new_axes[first] = name;
  new_sizes[first] = n;
  new_axes.erase(new_axes.begin() + first + 1, new_axes.begin() + first + joined.size());
  new_sizes.erase(new_sizes.begin() + first + 1, new_sizes.begin() + first + joined.size());
  check_axes(new_axes, new_sizes);
  DeviceMesh out = *this;
  out.data_ = std::make_shared<Data>(Data{std::move(new_axes), std::move(new_sizes), data_->of});
  return out;
}

DeviceMesh DeviceMesh::unflatten(const std::string& axis, const std::vector<std::string>& names,
                                 const std::vector<int64_t>& parts) const {
  const size_t at = axis_index(axis);
  if (names.empty() || names.size() != parts.size() || product(parts) != sizes()[at])
    throw ValueError(fmt::format("axis '{}' of size {} cannot be split into ({}) of sizes {}", axis, sizes()[at],
                                 fmt::join(names, ", "), fmt::join(parts, " x ")));
  std::vector<std::string> new_axes = axes();
  std::vector<int64_t> new_sizes = sizes();
  new_axes.erase(new_axes.begin() + at);
  new_sizes.erase(new_sizes.begin() + at);
  new_axes.insert(new_axes.begin() + at, names.begin(), names.end());
  new_sizes.insert(new_sizes.begin() + at, parts.begin(), parts.end());
  check_axes(new_axes, new_sizes);
  DeviceMesh out = *this;
  out.data_ = std::make_shared<Data>(Data{std::move(new_axes), std::move(new_sizes), data_->of});
  return out;
}

std::string DeviceMesh::to_string() const {
  std::string out;
  for (size_t i = 0; i < axes().size(); ++i) out += fmt::format("{}{}={}", i ? ", " : "", axes()[i], sizes()[i]);
  return "(" + out + ")";
}

bool DeviceMesh::operator==(const DeviceMesh& other) const {
  return data_ == other.data_ || (axes() == other.axes() && sizes() == other.sizes() && ranks() == other.ranks());
}

}  // namespace weft
