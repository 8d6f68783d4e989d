#pragma once
// The record that crosses the border between rollout and trainer: one prompt with one response. Token ids are never decoded and
// re-encoded. Positions count prompt and response tokens together, from 0; N = prompt + response tokens.
// Files of trajectories round-trip exactly, bit for bit, and are checked against damage and hostile content when read.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/io/routing_trace.h"

namespace weft {

// Response tokens [start, end) were sampled by weights of this version.
struct WeightSpan {
  int64_t version = 0, start = 0, end = 0;
  bool operator==(const WeightSpan&) const = default;
};

// The vocabulary entries from which one token was sampled: all of them, ascending ids, or a bitmap, whichever is smaller.
class KeptSet {
 public:
  KeptSet() = default;  // all
  // `ids` ascend, within [0, vocab_size), not empty (ValueError).
  static KeptSet from_ids(std::vector<int32_t> ids, int64_t vocab_size);
  // bit id of words, lowest first; ceil(vocab_size / 64) words.
  static KeptSet from_bitmap(std::vector<uint64_t> words, int64_t vocab_size);

  bool is_all() const { return ids_.empty() && words_.empty(); }
  bool contains(int32_t id) const;
  // Ascending. Of a set that holds all: 0 .. vocab_size-1.
  std::vector<int32_t> ids(int64_t vocab_size) const;
  int64_t vocab_size() const { return vocab_size_; }  // 0 for a set that holds all
  const std::vector<int32_t>& raw_ids() const { return ids_; }
  const std::vector<uint64_t>& raw_words() const { return words_; }
  bool operator==(const KeptSet&) const = default;

 private:
  int64_t vocab_size_ = 0;
  std::vector<int32_t> ids_;
  std::vector<uint64_t> words_;
};

struct Trajectory {
  int64_t dataset_row = 0;
  int64_t sample_index = 0;  // among the n of the prompt
  uint64_t seed = 0;
  std::vector<int32_t> prompt_ids, response_ids;
  std::vector<float> rollout_log_probs;  // [response]
  std::vector<uint8_t> response_mask;    // [response], 1: trained
  std::vector<WeightSpan> weight_versions;
  std::optional<RoutingTrace> routing;  // [N-1] rows
  std::vector<KeptSet> kept;            // [response], or empty: the full vocabulary everywhere
  std::string finish_reason;            // "stop", "length", "abort"
  double temperature = 1.0;
  std::map<std::string, double> rewards;  // by function, before weights
  double reward = 0.0;
  bool reward_valid = false;

  int64_t num_tokens() const { return static_cast<int64_t>(prompt_ids.size() + response_ids.size()); }
  std::string name() const;  // "row 12, sample 3", for messages
  bool operator==(const Trajectory&) const = default;
};

// ValueError naming the trajectory where the lengths of its parts do not fit together.
void validate_trajectory(const Trajectory& trajectory);

std::vector<std::byte> serialize_trajectories(std::span<const Trajectory> trajectories);
// `name` stands for the path in FileErrors.
std::vector<Trajectory> deserialize_trajectories(std::span<const std::byte> bytes, const std::string& name);

void save_trajectories(const std::string& path, std::span<const Trajectory> trajectories);  // atomically
std::vector<Trajectory> load_trajectories(const std::string& path);

}  // namespace weft
