#include "weft/train/job.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/signals.h"

namespace weft {
namespace {

constexpr const char* kPurpose = "samples";

double reduced(const Communicator* group, double mine, ReduceOp op) {
  if (group) group->all_reduce(&mine, &mine, 1, DType::kF64, op, kPurpose).wait();
  return mine;
}

}  // namespace

std::vector<std::vector<std::byte>> gather_bytes(const Communicator& group, std::span<const std::byte> mine) {
  const size_t ranks = static_cast<size_t>(group.size());
  const std::vector<int64_t> ones(ranks, 1);
  std::vector<int64_t> counts(ranks);
  const int64_t n = std::ssize(mine);
  group.all_gather(&n, counts.data(), ones, DType::kI64, kPurpose).wait();
  int64_t total = 0;
  for (int64_t c : counts) total += c;
  std::vector<std::byte> all(static_cast<size_t>(total));
  group.all_gather(mine.data(), all.data(), counts, DType::kU8, kPurpose).wait();
  std::vector<std::vector<std::byte>> out;
  auto at = all.begin();
  for (int64_t c : counts) out.emplace_back(at, at + c), at += c;
  return out;
}

bool Job::any(bool mine) const { return max(mine ? 1.0 : 0.0) > 0; }
double Job::sum(double mine) const { return reduced(world(), mine, ReduceOp::kSum); }
double Job::max(double mine) const { return reduced(world(), mine, ReduceOp::kMax); }

std::vector<std::vector<std::byte>> Job::gather_bytes(std::span<const std::byte> mine) const {
  if (!world()) return {{mine.begin(), mine.end()}};
  return weft::gather_bytes(*world(), mine);
}

std::vector<std::vector<std::byte>> Job::exchange_bytes(const std::vector<std::vector<std::byte>>& mine) const {
  WEFT_CHECK(std::ssize(mine) == size(), "{} parcels for {} ranks", mine.size(), size());
  if (!world()) return mine;
  const std::vector<int64_t> ones(mine.size(), 1);
  std::vector<int64_t> send, receive(mine.size());
  std::vector<std::byte> flat;
  for (const std::vector<std::byte>& m : mine) {
    send.push_back(std::ssize(m));
    flat.insert(flat.end(), m.begin(), m.end());
  }
  world()->all_to_all(send.data(), ones, receive.data(), ones, DType::kI64, kPurpose).wait();
  int64_t total = 0;
  for (int64_t n : receive) total += n;
  std::vector<std::byte> arrived(static_cast<size_t>(total));
  world()->all_to_all(flat.data(), send, arrived.data(), receive, DType::kU8, kPurpose).wait();
  std::vector<std::vector<std::byte>> out;
  auto at = arrived.begin();
  for (int64_t n : receive) out.emplace_back(at, at + n), at += n;
  return out;
}

void Job::sum(std::vector<double>& values) const {
  if (world()) world()->all_reduce(values.data(), values.data(), std::ssize(values), DType::kF64, ReduceOp::kSum, kPurpose).wait();
}

void Job::broadcast(std::vector<int64_t>& values, int from) const {
  if (!world()) return;
  int64_t count = std::ssize(values);
  world()->broadcast(&count, 1, DType::kI64, from, kPurpose).wait();
  values.resize(static_cast<size_t>(count));
  world()->broadcast(values.data(), count, DType::kI64, from, kPurpose).wait();
}

void Job::broadcast(std::vector<std::vector<float>>& rows, int from) const { broadcast_rows(rows, DType::kF32, from); }
void Job::broadcast(std::vector<std::vector<double>>& rows, int from) const { broadcast_rows(rows, DType::kF64, from); }
void Job::broadcast(std::vector<std::vector<uint8_t>>& rows, int from) const { broadcast_rows(rows, DType::kU8, from); }

template <class T>
void Job::broadcast_rows(std::vector<std::vector<T>>& rows, DType dtype, int from) const {
  if (!world()) return;
  std::vector<int64_t> lengths;
  std::vector<T> flat;
  for (const std::vector<T>& row : rows) {
    lengths.push_back(std::ssize(row));
    flat.insert(flat.end(), row.begin(), row.end());
  }
  broadcast(lengths, from);
  int64_t total = 0;
  for (int64_t n : lengths) total += n;
  flat.resize(static_cast<size_t>(total));
  world()->broadcast(flat.data(), total, dtype, from, kPurpose).wait();
  rows.clear();
  auto at = flat.begin();
  for (int64_t n : lengths) rows.emplace_back(at, at + n), at += n;
}

void Job::phase(bool here, const std::function<void()>& fn) const {
  std::string stopped;
  try {
    if (here) fn();
  } catch (const StoppedError& e) {
    stopped = e.what();
  }
  if (any(!stopped.empty())) throw StoppedError(stopped.empty() ? fmt::format("stopped by {}", stop_signal_name()) : stopped);
}

void Job::report_wait_share(double before, MetricsRow& row) const {
  if (size() == 1) return;
  const double share = (seconds_waited() - before) / std::max(1e-9, *row.find("timing_s/step"));
  row.set("perf/comm_wait_share/mean", sum(share) / size());
  row.set("perf/comm_wait_share/max", max(share));
}

std::map<std::string, double> Job::received_bytes() const {
  std::map<std::string, double> out;
  if (!world_) return out;
  for (const CommStatsRow& r : world_->stats().rows()) out[r.axis + "/" + r.purpose] += static_cast<double>(r.bytes.received);
  return out;
}

}  // namespace weft
