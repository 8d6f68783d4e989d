#include "weft/io/trajectory.h"

#include <algorithm>
#include <bit>

#include "weft/base/error.h"

namespace weft {
namespace {

// The smaller form of a set of ascending ids.
bool ids_are_smaller(int64_t count, int64_t vocab_size) { return count * 4 < (vocab_size + 63) / 64 * 8; }

}  // namespace

KeptSet KeptSet::from_ids(std::vector<int32_t> ids, int64_t vocab_size) {
  if (ids.empty()) throw ValueError("a kept set is empty");
  if (ids.front() < 0 || ids.back() >= vocab_size ||
      std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) != ids.end()) {
    throw ValueError(fmt::format("a kept set does not ascend within a vocabulary of {}", vocab_size));
  }
  KeptSet set;
  const auto count = static_cast<int64_t>(ids.size());
  if (count == vocab_size) return set;
  set.vocab_size_ = vocab_size;
  if (ids_are_smaller(count, vocab_size)) {
    set.ids_ = std::move(ids);
    return set;
  }
  set.words_.resize(static_cast<size_t>((vocab_size + 63) / 64));
  for (const int32_t id : ids) set.words_[static_cast<size_t>(id / 64)] |= uint64_t{1} << (id % 64);
  return set;
}

KeptSet KeptSet::from_bitmap(std::vector<uint64_t> words, int64_t vocab_size) {
  if (vocab_size < 1 || static_cast<int64_t>(words.size()) != (vocab_size + 63) / 64 ||
      (vocab_size % 64 != 0 && words.back() >> (vocab_size % 64) != 0)) {
    throw ValueError(fmt::format("a kept set of {} words does not fit a vocabulary of {}", words.size(), vocab_size));
  }
  int64_t count = 0;
  for (const uint64_t word : words) count += std::popcount(word);
  if (count == 0) throw ValueError("a kept set is empty");
  KeptSet set;
  if (count == vocab_size) return set;
  set.vocab_size_ = vocab_size;
  set.words_ = std::move(words);
  if (!ids_are_smaller(count, vocab_size)) return set;
  set.ids_ = set.ids(vocab_size);
  set.words_.clear();
  return set;
}

bool KeptSet::contains(int32_t id) const {
  if (is_all()) return true;
  if (!ids_.empty()) return std::binary_search(ids_.begin(), ids_.end(), id);
  return id >= 0 && static_cast<size_t>(id / 64) < words_.size() && (words_[static_cast<size_t>(id / 64)] >> (id % 64) & 1) != 0;
}

std::vector<int32_t> KeptSet::ids(int64_t vocab_size) const {
  if (!ids_.empty()) return ids_;
  std::vector<int32_t> result;
  for (int32_t id = 0; id < vocab_size; ++id) {
    if (contains(id)) result.push_back(id);
  }
  return result;
}

std::string Trajectory::name() const { return fmt::format("row {}, sample {}", dataset_row, sample_index); }

void validate_trajectory(const Trajectory& t) {
  const auto fail = [&](const std::string& what) { throw ValueError(fmt::format("trajectory ({}): {}", t.name(), what)); };
  const size_t response = t.response_ids.size();
  if (t.prompt_ids.empty()) fail("the prompt is empty");
  if (t.rollout_log_probs.size() != response)
    fail(fmt::format("{} log-probs for {} response tokens", t.rollout_log_probs.size(), response));
  if (t.response_mask.size() != response)
    fail(fmt::format("{} mask entries for {} response tokens", t.response_mask.size(), response));
  if (!t.kept.empty() && t.kept.size() != response)
    fail(fmt::format("{} kept sets for {} response tokens", t.kept.size(), response));
  for (const uint8_t mask : t.response_mask) {
    if (mask > 1) fail(fmt::format("mask entry {}", mask));
  }
  for (const auto* ids : {&t.prompt_ids, &t.response_ids}) {
    for (const int32_t id : *ids) {
      if (id < 0) fail(fmt::format("token id {}", id));
    }
  }
  int64_t before = 0;
  for (const WeightSpan& span : t.weight_versions) {
    if (span.start < before || span.end < span.start || span.end > static_cast<int64_t>(response)) {
      fail(fmt::format("weight version {} spans [{}, {}) of {} response tokens", span.version, span.start, span.end, response));
    }
    before = span.end;
  }
  if (t.routing && t.routing->num_rows() != t.num_tokens() - 1) {
    fail(fmt::format("{} routing rows for {} tokens (one less is expected)", t.routing->num_rows(), t.num_tokens()));
  }
  if (t.finish_reason != "stop" && t.finish_reason != "length" && t.finish_reason != "abort") {
    fail(fmt::format("finish reason \"{}\" is not stop, length or abort", t.finish_reason));
  }
}

}  // namespace weft
