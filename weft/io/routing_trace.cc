#include "weft/io/routing_trace.h"

#include <algorithm>
#include <cstring>

#include "weft/base/error.h"

namespace weft {
namespace {

std::string list(std::span<const int32_t> values) { return fmt::format("[{}]", fmt::join(values, ", ")); }

// What is wrong with one choice of k experts; empty: nothing.
std::string defect(std::span<const int32_t> experts, int num_experts) {
  for (size_t i = 0; i < experts.size(); ++i) {
    if (experts[i] < 0 || experts[i] >= num_experts) return fmt::format("expert {} is not one of {}", experts[i], num_experts);
    if (std::find(experts.begin(), experts.begin() + static_cast<ptrdiff_t>(i), experts[i]) !=
        experts.begin() + static_cast<ptrdiff_t>(i)) {
      return fmt::format("expert {} appears twice in {}", experts[i], list(experts));
    }
  }
  return "";
}

[[noreturn]] void fail(const std::string& trajectory, const std::string& what) {
  throw ValueError(fmt::format("routing trace of trajectory {}: {}", trajectory, what));
}

size_t valid_bytes(int64_t entries) { return static_cast<size_t>((entries + 7) / 8); }

}  // namespace

RoutingTrace::RoutingTrace(int64_t num_rows, std::vector<int32_t> layer_ids, int top_k, int num_experts)
    : layer_ids_(std::move(layer_ids)), top_k_(top_k), num_experts_(num_experts) {
  WEFT_CHECK(num_experts > 0 && num_experts <= 65536 && top_k > 0 && top_k <= num_experts, "top {} of {} experts", top_k,
             num_experts);
  WEFT_CHECK(std::adjacent_find(layer_ids_.begin(), layer_ids_.end(), std::greater_equal<>()) == layer_ids_.end(),
             "layer ids {} do not ascend", list(layer_ids_));
  resize_rows(num_rows);
}

std::optional<int64_t> RoutingTrace::index_of_layer(int32_t layer_id) const {
  const auto it = std::lower_bound(layer_ids_.begin(), layer_ids_.end(), layer_id);
  if (it == layer_ids_.end() || *it != layer_id) return std::nullopt;
  return it - layer_ids_.begin();
}

int64_t RoutingTrace::entry(int64_t row, int64_t layer_index) const {
  WEFT_CHECK(0 <= row && row < num_rows_ && 0 <= layer_index && layer_index < num_layers(), "row {} of {}, layer {} of {}", row,
             num_rows_, layer_index, num_layers());
  return row * num_layers() + layer_index;
}

int32_t RoutingTrace::load(int64_t element) const {
  if (!is_wide()) return static_cast<int32_t>(ids_[static_cast<size_t>(element)]);
  uint16_t value = 0;
  std::memcpy(&value, ids_.data() + element * 2, 2);
  return value;
}

void RoutingTrace::store(int64_t element, int32_t value) {
  if (!is_wide()) {
    ids_[static_cast<size_t>(element)] = static_cast<std::byte>(value);
    return;
  }
  const auto wide = static_cast<uint16_t>(value);
  std::memcpy(ids_.data() + element * 2, &wide, 2);
}

void RoutingTrace::mark_valid(int64_t entry_index) {
  valid_[static_cast<size_t>(entry_index / 8)] |= static_cast<uint8_t>(1u << (entry_index % 8));
}

bool RoutingTrace::is_valid(int64_t row, int64_t layer_index) const {
  const int64_t i = entry(row, layer_index);
  return (valid_[static_cast<size_t>(i / 8)] >> (i % 8) & 1) != 0;
}

void RoutingTrace::set(int64_t row, int64_t layer_index, std::span<const int32_t> experts) {
  WEFT_CHECK(static_cast<int>(experts.size()) == top_k_, "{} experts for top {}", experts.size(), top_k_);
  const std::string bad = defect(experts, num_experts_);
  WEFT_CHECK(bad.empty(), "row {}, layer {}: {}", row, layer_ids_[static_cast<size_t>(layer_index)], bad);
  const int64_t i = entry(row, layer_index);
  for (int k = 0; k < top_k_; ++k) store(i * top_k_ + k, experts[static_cast<size_t>(k)]);
  mark_valid(i);
}

void RoutingTrace::get(int64_t row, int64_t layer_index, std::span<int32_t> experts) const {
  copy_rows(layer_index, row, experts);
  WEFT_CHECK(static_cast<int>(experts.size()) == top_k_, "room for {} experts, top {}", experts.size(), top_k_);
}

std::vector<int32_t> RoutingTrace::get(int64_t row, int64_t layer_index) const {
  std::vector<int32_t> experts(static_cast<size_t>(top_k_));
  get(row, layer_index, experts);
  return experts;
}

void RoutingTrace::copy_rows(int64_t layer_index, int64_t begin, std::span<int32_t> out) const {
  WEFT_CHECK(top_k_ > 0 && out.size() % static_cast<size_t>(top_k_) == 0, "room for {} ids, top {}", out.size(), top_k_);
  const int64_t count = static_cast<int64_t>(out.size()) / top_k_;
  for (int64_t r = 0; r < count; ++r) {
    WEFT_CHECK(is_valid(begin + r, layer_index), "row {}, layer {} was not recorded", begin + r,
               layer_ids_[static_cast<size_t>(layer_index)]);
    const int64_t first = entry(begin + r, layer_index) * top_k_;
    for (int k = 0; k < top_k_; ++k) out[static_cast<size_t>(r * top_k_ + k)] = load(first + k);
  }
}

void RoutingTrace::resize_rows(int64_t num_rows) {
  WEFT_CHECK(num_rows >= 0, "{} rows", num_rows);
  num_rows_ = num_rows;
  const int64_t entries = num_rows * num_layers();
  ids_.resize(static_cast<size_t>(entries * top_k_ * (is_wide() ? 2 : 1)));
  valid_.resize(valid_bytes(entries));
  // Bits beyond the end stay 0, so that equal traces are equal bytes and a later growth starts invalid.
  if (entries % 8 != 0) valid_.back() &= static_cast<uint8_t>((1u << (entries % 8)) - 1);
}

void RoutingTrace::append(const RoutingTrace& other) {
  WEFT_CHECK(layer_ids_ == other.layer_ids_ && top_k_ == other.top_k_ && num_experts_ == other.num_experts_,
             "traces of different models are joined");
  const int64_t first = num_rows_ * num_layers(), added = other.num_rows_ * num_layers();
  const std::vector<std::byte> ids = other.ids_;
  const std::vector<uint8_t> valid = other.valid_;
  resize_rows(num_rows_ + other.num_rows_);
  std::copy(ids.begin(), ids.end(), ids_.end() - static_cast<ptrdiff_t>(ids.size()));
  for (int64_t i = 0; i < added; ++i) {
    if ((valid[static_cast<size_t>(i / 8)] >> (i % 8) & 1) != 0) mark_valid(first + i);
  }
}

RoutingTrace RoutingTrace::rows(int64_t begin, int64_t end) const {
  WEFT_CHECK(0 <= begin && begin <= end && end <= num_rows_, "rows [{}, {}) of {}", begin, end, num_rows_);
  RoutingTrace result(end - begin, layer_ids_, top_k_, num_experts_);
  const int64_t row_bytes = num_layers() * top_k_ * (is_wide() ? 2 : 1);
  std::copy(ids_.begin() + begin * row_bytes, ids_.begin() + end * row_bytes, result.ids_.begin());
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t layer = 0; layer < num_layers(); ++layer) {
      if (is_valid(row, layer)) result.mark_valid(result.entry(row - begin, layer));
    }
  }
  return result;
}

void RoutingTrace::validate(int64_t expected_rows, std::span<const int32_t> expected_layers,
                            const std::string& trajectory) const {
  if (!std::equal(layer_ids_.begin(), layer_ids_.end(), expected_layers.begin(), expected_layers.end())) {
    fail(trajectory, fmt::format("has layers {}, the model's MoE layers are {}", list(layer_ids_), list(expected_layers)));
  }
  if (num_rows_ != expected_rows) fail(trajectory, fmt::format("has {} rows, expected {}", num_rows_, expected_rows));
  std::vector<int32_t> experts(static_cast<size_t>(top_k_));
  for (int64_t row = 0; row < num_rows_; ++row) {
    for (int64_t layer = 0; layer < num_layers(); ++layer) {
      const int32_t id = layer_ids_[static_cast<size_t>(layer)];
      if (!is_valid(row, layer)) fail(trajectory, fmt::format("row {}, layer {}: missing", row, id));
      get(row, layer, experts);
      const std::string bad = defect(experts, num_experts_);
      if (!bad.empty()) fail(trajectory, fmt::format("row {}, layer {}: {}", row, id, bad));
    }
  }
}

NpyArray RoutingTrace::to_npy() const {
  for (int64_t row = 0; row < num_rows_; ++row) {
    for (int64_t layer = 0; layer < num_layers(); ++layer) {
      WEFT_CHECK(is_valid(row, layer), "row {}, layer {} was not recorded", row, layer_ids_[static_cast<size_t>(layer)]);
    }
  }
  return {is_wide() ? NpyType::kU16 : NpyType::kU8, {num_rows_, num_layers(), top_k_}, ids_};
}

RoutingTrace RoutingTrace::from_npy(const NpyArray& array, std::vector<int32_t> moe_layers, int64_t num_hidden_layers,
                                    int num_experts, const std::string& trajectory) {
  if (array.type == NpyType::kF32) fail(trajectory, "has float elements; expert ids are integers");
  if (array.shape.size() != 3) fail(trajectory, fmt::format("has {} dims; [rows, layers, k] is expected", array.shape.size()));
  const int64_t num_rows = array.shape[0], layers = array.shape[1], k = array.shape[2];
  const auto num_moe = static_cast<int64_t>(moe_layers.size());
  if (layers != num_moe && layers != num_hidden_layers) {
    fail(trajectory, fmt::format("has {} layers; the model has {} MoE layers of {}", layers, num_moe, num_hidden_layers));
  }
  if (k < 1 || k > num_experts) fail(trajectory, fmt::format("has {} experts a token of {}", k, num_experts));
  RoutingTrace trace(num_rows, std::move(moe_layers), static_cast<int>(k), num_experts);
  std::vector<int32_t> experts(static_cast<size_t>(k));
  for (int64_t layer = 0; layer < num_moe; ++layer) {
    const int32_t id = trace.layer_ids_[static_cast<size_t>(layer)];
    const int64_t column = layers == num_moe ? layer : id;
    bool all_zero = true;
    const auto element = [&](int64_t row, int64_t slot) { return array.integer((row * layers + column) * k + slot); };
    for (int64_t row = 0; row < num_rows && all_zero; ++row) {
      for (int64_t slot = 0; slot < k; ++slot) all_zero = all_zero && element(row, slot) == 0;
    }
    if (all_zero && k > 1 && num_rows > 0) fail(trajectory, fmt::format("layer {} holds zeros only: it was not recorded", id));
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int64_t slot = 0; slot < k; ++slot) {
        experts[static_cast<size_t>(slot)] = static_cast<int32_t>(std::clamp<int64_t>(element(row, slot), -1, INT32_MAX));
      }
      if (std::all_of(experts.begin(), experts.end(), [](int32_t e) { return e == -1; })) {
        fail(trajectory, fmt::format("row {}, layer {}: missing", row, id));
      }
      const std::string bad = defect(experts, num_experts);
      if (!bad.empty()) fail(trajectory, fmt::format("row {}, layer {}: {}", row, id, bad));
      trace.set(row, layer, experts);
    }
  }
  return trace;
}

RoutingTrace RoutingTrace::from_raw(int64_t num_rows, std::vector<int32_t> layer_ids, int top_k, int num_experts,
                                    std::vector<std::byte> ids, std::vector<uint8_t> valid) {
  const auto bad = [](const std::string& what) -> void { throw ValueError("routing trace: " + what); };
  if (num_experts < 1 || num_experts > 65536 || top_k < 1 || top_k > num_experts)
    bad(fmt::format("top {} of {} experts", top_k, num_experts));
  if (std::adjacent_find(layer_ids.begin(), layer_ids.end(), std::greater_equal<>()) != layer_ids.end())
    bad("layer ids do not ascend");
  int64_t entries = 0, bytes = 0;
  if (num_rows < 0 || __builtin_mul_overflow(num_rows, static_cast<int64_t>(layer_ids.size()), &entries) ||
      __builtin_mul_overflow(entries, static_cast<int64_t>(top_k) * (num_experts > 256 ? 2 : 1), &bytes) ||
      bytes != static_cast<int64_t>(ids.size()) || valid_bytes(entries) != valid.size()) {
    bad(fmt::format("{} bytes of ids do not fit {} rows of {} layers", ids.size(), num_rows, layer_ids.size()));
  }
  if (entries % 8 != 0 && valid.back() >> (entries % 8) != 0) bad("validity bits beyond the last row");
  RoutingTrace trace(0, std::move(layer_ids), top_k, num_experts);
  trace.num_rows_ = num_rows;
  trace.ids_ = std::move(ids);
  trace.valid_ = std::move(valid);
  std::vector<int32_t> experts(static_cast<size_t>(top_k));
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t layer = 0; layer < trace.num_layers(); ++layer) {
      if (!trace.is_valid(row, layer)) continue;
      trace.get(row, layer, experts);
      const std::string what = defect(experts, num_experts);
      if (!what.empty()) bad(fmt::format("row {}, layer {}: {}", row, trace.layer_ids_[static_cast<size_t>(layer)], what));
    }
  }
  return trace;
}

}  // namespace weft
