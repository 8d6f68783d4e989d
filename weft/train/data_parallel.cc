#include "weft/train/data_parallel.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/train/job.h"

namespace weft {
namespace {

constexpr const char* kPurpose = "samples";

double reduced(const Communicator& group, double mine, ReduceOp op) {
  group.all_reduce(&mine, &mine, 1, DType::kF64, op, kPurpose).wait();
  return mine;
}

}  // namespace

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

std::vector<RoutingTrace> DataParallel::gather_traces(const Share& share, MicroBatch list, std::vector<RoutingTrace> mine) const {
  if (size() == 1) return mine;
  std::vector<Trajectory> own;
  const size_t begin = share.begin[share.mine];
  for (size_t i = 0; i < mine.size(); ++i) {
    own.push_back(*list[begin + i]);
    own.back().routing = std::move(mine[i]);
  }
  std::vector<RoutingTrace> out;
  for (const std::vector<std::byte>& bytes : gather_bytes(mesh_->data, serialize_trajectories(own)))
    for (Trajectory& t : deserialize_trajectories(bytes, "a peer's traces")) out.push_back(std::move(*t.routing));
  return out;
}

bool DataParallel::any(bool mine) const { return size() == 1 ? mine : max(mine ? 1.0 : 0.0) > 0; }

double DataParallel::sum_over_places(double mine) const {
  return size() == 1 ? mine : reduced(mesh_->data, mine, ReduceOp::kSum);
}

double DataParallel::max(double mine) const { return size() == 1 ? mine : reduced(mesh_->world, mine, ReduceOp::kMax); }

std::string DataParallel::first_text(const std::string& mine) const {
  if (size() == 1) return mine;
  for (const std::vector<std::byte>& text : gather_bytes(mesh_->world, std::as_bytes(std::span(mine))))
    if (!text.empty()) return {reinterpret_cast<const char*>(text.data()), text.size()};
  return "";
}

void DataParallel::sum_over_shards(std::vector<double>& values) const {
  if (size() == 1) return;
  mesh_->replica
      .all_reduce(values.data(), values.data(), static_cast<int64_t>(values.size()), DType::kF64, ReduceOp::kSum, "grad_norm")
      .wait();
}

}  // namespace weft
