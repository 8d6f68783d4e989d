#include "weft/train/data_parallel.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr const char* kPurpose = "samples";

std::vector<std::vector<std::byte>> gather_bytes_over(const Communicator& group, std::span<const std::byte> mine) {
  const size_t ranks = static_cast<size_t>(group.size());
  const std::vector<int64_t> ones(ranks, 1);
  std::vector<int64_t> counts(ranks);
  const int64_t n = static_cast<int64_t>(mine.size());
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

double reduced(const Communicator& group, double mine, ReduceOp op) {
  group.all_reduce(&mine, &mine, 1, DType::kF64, op, kPurpose).wait();
  return mine;
}

}  // namespace

std::pair<int64_t, int64_t> DataParallel::range(int64_t n, int rank) const {
  const int64_t chunk = (n + size() - 1) / size(), begin = std::min(n, rank * chunk);
  return {begin, std::min(n, begin + chunk)};
}

DataParallel::Share DataParallel::share(MicroBatch list, int64_t max_tokens) const {
  const size_t ranks = mesh_ ? static_cast<size_t>(mesh_->data.size()) : 1;
  int64_t total = 0;
  for (const Trajectory* t : list) total += t->num_tokens();
  Share s;
  s.mine = mesh_ ? static_cast<size_t>(mesh_->data.rank()) : 0;
  s.begin.assign(ranks + 1, list.size());
  int64_t before = 0;
  size_t next = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    while (next < ranks && before * static_cast<int64_t>(ranks) >= total * static_cast<int64_t>(next)) s.begin[next++] = i;
    before += list[i]->num_tokens();
  }
  size_t most = 0;
  for (size_t r = 0; r < ranks; ++r) {
    std::vector<MicroBatch> parts = split_micro_batches(list.subspan(s.begin[r], s.begin[r + 1] - s.begin[r]), max_tokens);
    most = std::max(most, parts.size());
    if (r == s.mine) s.micro_batches = std::move(parts);
  }
  s.micro_batches.resize(most);
  return s;
}

std::vector<float> DataParallel::gather_tokens(const Share& share, MicroBatch list, const std::vector<float>& mine) const {
  if (size() == 1) return mine;
  std::vector<int64_t> counts;
  int64_t total = 0;
  for (size_t r = 0; r + 1 < share.begin.size(); ++r) {
    int64_t n = 0;
    for (size_t i = share.begin[r]; i < share.begin[r + 1]; ++i) n += static_cast<int64_t>(list[i]->response_ids.size());
    counts.push_back(n), total += n;
  }
  WEFT_CHECK(static_cast<int64_t>(mine.size()) == counts[share.mine], "{} values for {} tokens", mine.size(), counts[share.mine]);
  std::vector<float> all(static_cast<size_t>(total));
  mesh_->data.all_gather(mine.data(), all.data(), counts, DType::kF32, kPurpose).wait();
  return all;
}

std::vector<std::vector<std::byte>> DataParallel::gather_bytes(std::span<const std::byte> mine) const {
  if (size() == 1) return {{mine.begin(), mine.end()}};
  return gather_bytes_over(mesh_->world, mine);
}

std::vector<RoutingTrace> DataParallel::gather_traces(const Share& share, MicroBatch list, std::vector<RoutingTrace> mine) const {
  if (size() == 1) return mine;
  std::vector<Trajectory> own;
  const size_t begin = share.begin[share.mine];
  for (size_t i = 0; i < mine.size(); ++i) {
    own.push_back(*list[begin + i]);
    own.back().routing = std::move(mine[i]);
  }
  std::vector<RoutingTrace> out;
  for (const std::vector<std::byte>& bytes : gather_bytes_over(mesh_->data, serialize_trajectories(own)))
    for (Trajectory& t : deserialize_trajectories(bytes, "a peer's traces")) out.push_back(std::move(*t.routing));
  return out;
}

bool DataParallel::any(bool mine) const { return size() == 1 ? mine : max(mine ? 1.0 : 0.0) > 0; }

double DataParallel::sum(double mine) const { return size() == 1 ? mine : reduced(mesh_->world, mine, ReduceOp::kSum); }

double DataParallel::sum_over_places(double mine) const {
  return size() == 1 ? mine : reduced(mesh_->data, mine, ReduceOp::kSum);
}

double DataParallel::max(double mine) const { return size() == 1 ? mine : reduced(mesh_->world, mine, ReduceOp::kMax); }

std::map<std::string, double> DataParallel::received_bytes() const {
  std::map<std::string, double> out;
  if (!mesh_) return out;
  for (const CommStatsRow& r : mesh_->world.stats().rows())
    out[r.axis + "/" + r.purpose] += static_cast<double>(r.bytes.received);
  return out;
}

void DataParallel::report_wait_share(double before, MetricsRow& row) const {
  if (size() == 1) return;
  const double share = (seconds_waited() - before) / std::max(1e-9, *row.find("timing_s/step"));
  row.set("perf/comm_wait_share/mean", sum(share) / size());
  row.set("perf/comm_wait_share/max", max(share));
}

void DataParallel::sum_over_shards(std::vector<double>& values) const {
  if (size() == 1) return;
  mesh_->replica
      .all_reduce(values.data(), values.data(), static_cast<int64_t>(values.size()), DType::kF64, ReduceOp::kSum, "grad_norm")
      .wait();
}

}  // namespace weft
