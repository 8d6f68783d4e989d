#include <xxhash.h>

#include <bit>
#include <cstring>
#include <type_traits>

#include "weft/base/error.h"
#include "weft/io/atomic_file.h"
#include "weft/io/mapped_file.h"
#include "weft/io/trajectory.h"

// Format: magic, u64 number of trajectories, their fields in order (little-endian; vectors as u64 count and elements), then the
// XXH3 of everything before. The magic's last digit is the version.

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little, "the records are little-endian");

constexpr std::string_view kTrajectoryMagic = "WEFTTRJ1";

class ByteWriter {
 public:
  void raw(const void* data, size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + bytes);
  }
  template <typename T>
  void value(const T& v) {
    static_assert(std::is_arithmetic_v<T>);
    raw(&v, sizeof v);
  }
  template <typename Container>
  void list(const Container& v) {
    value<uint64_t>(v.size());
    raw(v.data(), v.size() * sizeof(v[0]));
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}

  [[noreturn]] void fail(const std::string& what) const { throw FileError(name_, fmt::format("byte {}", at_), what); }
  void raw(void* out, size_t bytes) {
    if (bytes > bytes_.size() - at_) fail(fmt::format("{} bytes expected, {} are left", bytes, bytes_.size() - at_));
    if (bytes > 0) std::memcpy(out, bytes_.data() + at_, bytes);
    at_ += bytes;
  }
  template <typename T>
  T value() {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    T v{};
    raw(&v, sizeof v);
    return v;
  }
  bool flag() {
    const auto v = value<uint8_t>();
    if (v > 1) fail(fmt::format("flag {}", v));
    return v == 1;
  }
  // A count of things that take at least `element_bytes` each, so that a lie cannot ask for more memory than the file's size.
  size_t count(size_t element_bytes) {
    const auto n = value<uint64_t>();
    if (n > (bytes_.size() - at_) / element_bytes)
      fail(fmt::format("{} elements do not fit the {} bytes left", n, bytes_.size() - at_));
    return n;
  }
  template <typename Container>
  Container list() {
    Container v;
    v.resize(count(sizeof(v[0])));
    raw(v.data(), v.size() * sizeof(v[0]));
    return v;
  }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  std::string name_;
  size_t at_ = 0;
};

void write(ByteWriter& out, const RoutingTrace& trace) {
  out.value(trace.num_rows());
  out.list(trace.layer_ids());
  out.value<int32_t>(trace.top_k());
  out.value<int32_t>(trace.num_experts());
  out.list(trace.raw_ids());
  out.list(trace.raw_valid());
}

RoutingTrace read_routing(ByteReader& in) {
  const auto rows = in.value<int64_t>();
  auto layers = in.list<std::vector<int32_t>>();
  const auto top_k = in.value<int32_t>();
  const auto experts = in.value<int32_t>();
  auto ids = in.list<std::vector<std::byte>>();
  auto valid = in.list<std::vector<uint8_t>>();
  return RoutingTrace::from_raw(rows, std::move(layers), top_k, experts, std::move(ids), std::move(valid));
}

enum KeptForm : uint8_t { kAll, kIds, kBitmap };

void write(ByteWriter& out, const KeptSet& set) {
  const KeptForm form = set.is_all() ? kAll : set.raw_ids().empty() ? kBitmap : kIds;
  out.value<uint8_t>(form);
  if (form == kAll) return;
  out.value(set.vocab_size());
  if (form == kIds) out.list(set.raw_ids());
  if (form == kBitmap) out.list(set.raw_words());
}

KeptSet read_kept(ByteReader& in) {
  const auto form = in.value<uint8_t>();
  if (form == kAll) return {};
  const auto vocab_size = in.value<int64_t>();
  if (form != kIds && form != kBitmap) in.fail(fmt::format("unknown form {} of a kept set", form));
  KeptSet set = form == kIds ? KeptSet::from_ids(in.list<std::vector<int32_t>>(), vocab_size)
                             : KeptSet::from_bitmap(in.list<std::vector<uint64_t>>(), vocab_size);
  // One set has one form, so that equal records are equal bytes.
  if (set.is_all() || set.raw_ids().empty() != (form == kBitmap)) in.fail("a kept set is not in its smallest form");
  return set;
}

void write(ByteWriter& out, const Trajectory& t) {
  out.value(t.dataset_row);
  out.value(t.sample_index);
  out.value(t.seed);
  out.list(t.prompt_ids);
  out.list(t.response_ids);
  out.list(t.rollout_log_probs);
  out.list(t.response_mask);
  out.value<uint64_t>(t.weight_versions.size());
  for (const WeightSpan& span : t.weight_versions) {
    out.value(span.version);
    out.value(span.start);
    out.value(span.end);
  }
  out.value<uint8_t>(t.routing.has_value());
  if (t.routing) write(out, *t.routing);
  out.value<uint64_t>(t.kept.size());
  for (const KeptSet& set : t.kept) write(out, set);
  out.list(t.finish_reason);
  out.value(t.temperature);
  out.value<uint64_t>(t.rewards.size());
  for (const auto& [function, reward] : t.rewards) {
    out.list(function);
    out.value(reward);
  }
  out.value(t.reward);
  out.value<uint8_t>(t.reward_valid);
}

Trajectory read_trajectory(ByteReader& in) {
  Trajectory t;
  t.dataset_row = in.value<int64_t>();
  t.sample_index = in.value<int64_t>();
  t.seed = in.value<uint64_t>();
  t.prompt_ids = in.list<std::vector<int32_t>>();
  t.response_ids = in.list<std::vector<int32_t>>();
  t.rollout_log_probs = in.list<std::vector<float>>();
  t.response_mask = in.list<std::vector<uint8_t>>();
  t.weight_versions.resize(in.count(3 * sizeof(int64_t)));
  for (WeightSpan& span : t.weight_versions) {
    span.version = in.value<int64_t>();
    span.start = in.value<int64_t>();
    span.end = in.value<int64_t>();
  }
  if (in.flag()) t.routing = read_routing(in);
  const size_t num_kept = in.count(1);
  if (num_kept > t.response_ids.size())
    in.fail(fmt::format("{} kept sets for {} response tokens", num_kept, t.response_ids.size()));
  for (size_t i = 0; i < num_kept; ++i) t.kept.push_back(read_kept(in));
  t.finish_reason = in.list<std::string>();
  t.temperature = in.value<double>();
  const size_t num_rewards = in.count(sizeof(uint64_t) + sizeof(double));
  for (size_t i = 0; i < num_rewards; ++i) {
    const auto function = in.list<std::string>();
    if (!t.rewards.empty() && t.rewards.rbegin()->first >= function) in.fail("reward names do not ascend");
    t.rewards[function] = in.value<double>();
  }
  t.reward = in.value<double>();
  t.reward_valid = in.flag();
  validate_trajectory(t);
  return t;
}

}  // namespace

std::vector<std::byte> serialize_trajectories(std::span<const Trajectory> trajectories) {
  ByteWriter out;
  out.raw(kTrajectoryMagic.data(), kTrajectoryMagic.size());
  out.value<uint64_t>(trajectories.size());
  for (const Trajectory& trajectory : trajectories) {
    validate_trajectory(trajectory);
    write(out, trajectory);
  }
  out.value<uint64_t>(XXH3_64bits(out.bytes().data(), out.bytes().size()));
  return std::move(out.bytes());
}

std::vector<Trajectory> deserialize_trajectories(std::span<const std::byte> bytes, const std::string& name) {
  constexpr size_t kHash = sizeof(uint64_t);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kTrajectoryMagic) || bytes.size() < kTrajectoryMagic.size() + 2 * kHash)
    throw FileError(name, "", "not a file of trajectories");
  const auto body = bytes.first(bytes.size() - kHash);
  uint64_t hash = 0;
  std::memcpy(&hash, bytes.data() + body.size(), kHash);
  if (hash != XXH3_64bits(body.data(), body.size()))
    throw FileError(name, "", "damaged or truncated: the checksum does not match");
  ByteReader in(body.subspan(kTrajectoryMagic.size()), name);
  std::vector<Trajectory> trajectories;
  const size_t count = in.count(1);
  try {
    for (size_t i = 0; i < count; ++i) trajectories.push_back(read_trajectory(in));
  } catch (const ValueError& error) {
    throw FileError(name, fmt::format("trajectory {}", trajectories.size()), error.what());
  }
  if (!in.at_end()) in.fail("bytes after the last trajectory");
  return trajectories;
}

void save_trajectories(const std::string& path, std::span<const Trajectory> trajectories) {
  AtomicFile file(path);
  file.write(serialize_trajectories(trajectories));
  file.commit();
}

std::vector<Trajectory> load_trajectories(const std::string& path) {
  const MappedFile file(path);
  return deserialize_trajectories(file.bytes(), path);
}

}  // namespace weft
