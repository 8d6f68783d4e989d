#pragma once
// Which experts each token took in each MoE layer: ids [rows, layers, k] in slot order, uint8 up to 256 experts, else uint16,
// with one validity bit for each (row, layer). N tokens have N-1 rows. Layers are named by their global index in the model, so
// dense layers have none. Fails closed: ValueError naming trajectory, row and layer.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/io/npy.h"

namespace weft {

class RoutingTrace {
 public:
  RoutingTrace() = default;
  // No row is valid yet. layer_ids ascend.
  RoutingTrace(int64_t num_rows, std::vector<int32_t> layer_ids, int top_k, int num_experts);

  int64_t num_rows() const { return num_rows_; }
  int64_t num_layers() const { return static_cast<int64_t>(layer_ids_.size()); }
  const std::vector<int32_t>& layer_ids() const { return layer_ids_; }
  int top_k() const { return top_k_; }
  int num_experts() const { return num_experts_; }
  bool is_wide() const { return num_experts_ > 256; }  // uint16
  std::optional<int64_t> index_of_layer(int32_t layer_id) const;

  bool is_valid(int64_t row, int64_t layer_index) const;
  // experts[k]; out of range or a duplicate is our bug here (they come from our own router).
  void set(int64_t row, int64_t layer_index, std::span<const int32_t> experts);
  // Writes top_k ids. The entry must be valid.
  void get(int64_t row, int64_t layer_index, std::span<int32_t> experts) const;
  std::vector<int32_t> get(int64_t row, int64_t layer_index) const;
  // Rows [begin, begin + out.size() / k) of one layer; all must be valid.
  void copy_rows(int64_t layer_index, int64_t begin, std::span<int32_t> out) const;

  // Grows by rows that are not valid yet, or cuts (a trace of more tokens than were kept).
  void resize_rows(int64_t num_rows);
  // Rows of `other` (same layers, k and experts) after ours.
  void append(const RoutingTrace& other);
  RoutingTrace rows(int64_t begin, int64_t end) const;

  // Everything is there: `expected_rows` rows, these layers, each entry valid, in range, without duplicates.
  void validate(int64_t expected_rows, std::span<const int32_t> expected_layers, const std::string& trajectory) const;

  // [rows, layers, k], uint8 or uint16. Every entry must be valid.
  NpyArray to_npy() const;
  // From another engine: uint8, uint16, int16, int32 or int64 [rows, layers, k] with either a layer for each of `moe_layers`
  // or one for each of the model's `num_hidden_layers` (then picked by global id). Also refuses a layer of zeros only (k > 1):
  // engines that failed to record return those.
  static RoutingTrace from_npy(const NpyArray& array, std::vector<int32_t> moe_layers, int64_t num_hidden_layers, int num_experts,
                               const std::string& trajectory);

  // The storage, for records on disk.
  const std::vector<std::byte>& raw_ids() const { return ids_; }
  const std::vector<uint8_t>& raw_valid() const { return valid_; }
  // ValueError where the sizes do not fit or a valid entry is out of range.
  static RoutingTrace from_raw(int64_t num_rows, std::vector<int32_t> layer_ids, int top_k, int num_experts,
                               std::vector<std::byte> ids, std::vector<uint8_t> valid);

  bool operator==(const RoutingTrace&) const = default;

 private:
  int64_t entry(int64_t row, int64_t layer_index) const;
  int32_t load(int64_t element) const;
  void store(int64_t element, int32_t value);
  void mark_valid(int64_t entry_index);

  int64_t num_rows_ = 0;
  std::vector<int32_t> layer_ids_;
  int top_k_ = 0;
  int num_experts_ = 0;
  std::vector<std::byte> ids_;  // [rows, layers, k] of uint8 or uint16
  std::vector<uint8_t> valid_;  // bit row * layers + layer_index, lowest bit first
};

}  // namespace weft
