#pragma once
// How many bytes a rank sent and received, by operation, axis and purpose. Bytes that a rank keeps to itself are not counted.
// An all-reduce counts what it moves: its reduce-scatter and its all-gather (small ones: every peer's input). A shared gather
// counts the own part as sent once and the peers' parts as received. Counted when the operation is enqueued; readable at any time
// from any thread.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "weft/comm/operation.h"

namespace weft {

struct CommBytes {
  int64_t operations = 0;
  int64_t sent = 0;      // bytes
  int64_t received = 0;  // bytes
  bool operator==(const CommBytes&) const = default;
};

struct CommStatsRow {
  OpKind kind;
  std::string axis, purpose;
  CommBytes bytes;
};

class CommStats {
 public:
  void add(OpKind kind, std::string_view axis, std::string_view purpose, int64_t sent, int64_t received);

  CommBytes of(OpKind kind, std::string_view axis, std::string_view purpose) const;  // zeros for what never happened
  CommBytes total() const;
  std::vector<CommStatsRow> rows() const;  // by operation, axis, purpose
  void clear();

 private:
  using Key = std::tuple<OpKind, std::string, std::string>;
  mutable std::mutex mutex_;
  std::map<Key, CommBytes> rows_;
};

}  // namespace weft
