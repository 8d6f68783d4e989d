#include "weft/comm/comm_stats.h"

namespace weft {

void CommStats::add(OpKind kind, std::string_view axis, std::string_view purpose, int64_t sent, int64_t received) {
  std::lock_guard lock(mutex_);
  CommBytes& row = rows_[Key(kind, axis, purpose)];
  ++row.operations;
  row.sent += sent;
  row.received += received;
}

CommBytes CommStats::of(OpKind kind, std::string_view axis, std::string_view purpose) const {
  std::lock_guard lock(mutex_);
  const auto found = rows_.find(Key(kind, axis, purpose));
  return found == rows_.end() ? CommBytes{} : found->second;
}

CommBytes CommStats::total() const {
  std::lock_guard lock(mutex_);
  CommBytes sum;
  for (const auto& [key, row] : rows_) {
    sum.operations += row.operations;
    sum.sent += row.sent;
    sum.received += row.received;
  }
  return sum;
}

std::vector<CommStatsRow> CommStats::rows() const {
  std::lock_guard lock(mutex_);
  std::vector<CommStatsRow> out;
  for (const auto& [key, row] : rows_) out.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), row});
  return out;
}

void CommStats::clear() {
  std::lock_guard lock(mutex_);
  rows_.clear();
}

}  // namespace weft
