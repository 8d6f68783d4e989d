#include "weft/refit/refit.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "weft/base/clock.h"
#include "weft/base/threads.h"
#include "weft/base/trace.h"

namespace weft {
namespace {

constexpr const char* kPurpose = "refit";
constexpr const char* kChecksPurpose = "refit_checks";
// Elements of a rank's own copies that a thread takes at a time; what is converted for them stays in its core's cache.
constexpr int64_t kGrain = 1 << 17;
// Buckets in flight at most, where the watermark allows more than two: ranks need not keep step then.
constexpr size_t kFlights = 8;

int64_t even(int64_t bytes) { return (bytes + 1) / 2 * 2; }

// The box where it is this rank's to hash it: of a box that several ranks hold the first one's counts.
const LocalBox* counted_box(const RefitTensor& tensor, const Box& box, int64_t rank) {
  for (const HolderSet& set : tensor.from)
    for (const LocalBox& b : set.boxes)
      if (set.ranks[0] == rank && b.box == box) return &b;
  return nullptr;
}

}  // namespace

// Memory of buckets in flight, kept for the next ones: fresh pages cost more than what is written to them. What is kept and what
// is in use are never more than `limit` together, as long as what is in use is not.
struct Refit::Staging {
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    int64_t bytes = 0;
  };
  int64_t limit = 0, held = 0;
  std::vector<Block> idle = {};

  Block take(int64_t n) {
    if (n == 0) return {};
    const auto fits = std::find_if(idle.begin(), idle.end(), [&](const Block& b) { return b.bytes >= n; });
    if (fits != idle.end()) {
      Block out = std::move(*fits);
      idle.erase(fits);
      return out;
    }
    for (; held + n > limit && !idle.empty(); idle.pop_back()) held -= idle.back().bytes;
    held += n;
    return {std::unique_ptr<std::byte[]>(new std::byte[static_cast<size_t>(n)]), n};
  }
  void give(Block block) {
    if (block.bytes > 0) idle.push_back(std::move(block));
  }
};

struct Refit::Flight {
  struct Converted {
    const Piece* piece;
    int64_t at;                                    // in the memory
    std::vector<std::pair<size_t, size_t>> boxes;  // of `send`, that wait for its address
  };
  const Bucket* bucket = nullptr;
  std::vector<std::vector<MemoryBox>> send, recv;
  std::vector<Converted> converted;
  int64_t bytes = 0, converted_bytes = 0;  // beyond the destinations: in all, of what is converted
  Staging::Block memory;
  Work work;  // ends before the memory
};

// Shares of each tensor's hash. The sources are hashed as they lie, not as they are sent, so that a plan that takes the wrong
// box shows too.
struct Refit::Checks {
  std::vector<uint64_t> sources, destinations;  // this rank's share; of a source that several ranks hold the first counts
  std::set<const LocalBox*> counted;            // boxes of sources that are in it, from the own copies
  std::vector<std::vector<uint64_t>> received;  // of each bucket's receives
};

Refit::Refit(std::vector<RefitTensor> tensors, const Communicator& ranks, RefitOptions options)
    : tensors_(std::move(tensors)), ranks_(ranks), options_(std::move(options)), plan_(plan_refit(tensors_)), scales_(tensors_) {
  const int64_t me = ranks_.rank();
  for (size_t i = 0; i < tensors_.size(); ++i)
    for (const Transfer& t : plan_.transfers[i])
      if (t.source == me && t.destination == me) own_.push_back({i, t});
  buckets_.resize(1);
  const int64_t n = for_each_in_buckets(tensors_, plan_, options_.watermark, [&](int64_t bucket, size_t i, const Transfer& part) {
    buckets_.resize(std::max(buckets_.size(), static_cast<size_t>(bucket) + 1));
    if (part.source == me) buckets_.back().sends.push_back({i, part});
    if (part.destination == me) buckets_.back().receives.push_back({i, part});
  });
  WEFT_CHECK(n == std::ssize(buckets_), "{} buckets of {}", buckets_.size(), n);
}

void Refit::check_parts(std::span<const TensorPart> sources, std::span<const TensorPart> destinations) const {
  if (sources.size() != tensors_.size() || destinations.size() != tensors_.size())
    throw ValueError(fmt::format("a refit of {} tensors was given {} sources and {} destinations", tensors_.size(),
                                 sources.size(), destinations.size()));
  const auto check = [&](size_t i, const TensorPart& part, const std::vector<int64_t>& offset, const Box& box, const char* what) {
    const RefitTensor& t = tensors_[i];
    bool fits = part.data && part.shape.size() == t.shape.size();
    for (size_t d = 0; fits && d < box.size.size(); ++d) fits = offset[d] + box.size[d] <= part.shape[d];
    if (!fits)
      throw ValueError(fmt::format("{}: the {} of rank {} is {}, the plan has {} of it at {}", t.name, what, ranks_.rank(),
                                   part.data ? shape_text(part.shape) : "not there", shape_text(box.size), shape_text(offset)));
  };
  const auto source = [&](const Piece& p) {
    check(p.tensor, sources[p.tensor], p.transfer.source_offset, p.transfer.box, "source");
    const RefitTensor& t = tensors_[p.tensor];
    if (!converts(sources[p.tensor].dtype, t.dtype))
      throw ValueError(
          fmt::format("{}: {} cannot be sent as {}", t.name, dtype_name(sources[p.tensor].dtype), dtype_name(t.dtype)));
  };
  const auto destination = [&](const Piece& p) {
    const RefitTensor& t = tensors_[p.tensor];
    const TensorPart& part = destinations[p.tensor];
    check(p.tensor, part, p.transfer.destination_offset, p.transfer.box, "destination");
    if (part.dtype != t.dtype)
      throw ValueError(fmt::format("{}: planned as {}, the rollout has {}", t.name, dtype_name(t.dtype), dtype_name(part.dtype)));
    if (part.dtype == DType::kI8 && !part.scales)
      throw ValueError(fmt::format("{}: an int8 destination of rank {} has no place for scales", t.name, ranks_.rank()));
  };
  for (const Bucket& b : buckets_) {
    std::for_each(b.sends.begin(), b.sends.end(), source);
    std::for_each(b.receives.begin(), b.receives.end(), destination);
  }
  std::for_each(own_.begin(), own_.end(), source);
  std::for_each(own_.begin(), own_.end(), destination);
}

void Refit::copy_own(std::span<const TensorPart> sources, std::span<const TensorPart> destinations, Checks& checks,
                     RefitReport& report) const {
  for (const Piece& p : own_) {
    const TensorPart &from = sources[p.tensor], &to = destinations[p.tensor];
    const Transfer& t = p.transfer;
    const RefitTensor& tensor = tensors_[p.tensor];
    const int64_t bytes = t.box.numel() * dtype_bytes(to.dtype);
    const bool converted = from.dtype != to.dtype;
    const bool there =
        !converted && memory_box(from, t.source_offset, t.box.size).data == memory_box(to, t.destination_offset, t.box.size).data;
    if (!there) report.copied += bytes;
    if (there && !options_.verify) continue;
    // The trainer's hash of a box comes with its copy, where the layout says that it lies where the plan takes it from.
    const LocalBox* counted = options_.verify ? counted_box(tensor, t.box, ranks_.rank()) : nullptr;
    if (counted && counted->local_offset != t.source_offset) counted = nullptr;
    if (counted) checks.counted.insert(counted);
    std::vector<Box> boxes;
    for_each_part(t.box, kGrain, [&](const Box& box) { boxes.push_back(box); });
    std::vector<CopyHashes> sums(boxes.size());
    parallel_for(std::ssize(boxes), 1, [&](int64_t begin, int64_t end) {
      std::vector<std::byte> staging;
      for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        const Box& box = boxes[i];
        const Transfer part = part_of(t, box);
        TensorPart source = from;
        std::vector<int64_t> at = part.source_offset;
        if (converted) {
          staging.resize(static_cast<size_t>(box.numel() * dtype_bytes(to.dtype)));
          convert_box(from, at, box, wire(p.tensor), staging.data());
          source = {staging.data(), to.dtype, box.size};
          std::fill(at.begin(), at.end(), 0);
        }
        if (options_.verify)
          sums[i] = copy_and_hash_box(to, part.destination_offset, source, at, box, tensor.shape);
        else
          copy_box(memory_box(to, part.destination_offset, box.size), memory_box(source, at, box.size), stores_for(bytes));
      }
    });
    for (const CopyHashes& s : sums) {
      if (counted) checks.sources[p.tensor] += s.read;
      checks.destinations[p.tensor] += s.written;
    }
  }
}

void Refit::hash_sources(std::span<const TensorPart> sources, Checks& checks) const {
  for (size_t i = 0; i < tensors_.size(); ++i)
    for (const HolderSet& set : tensors_[i].from)
      for (const LocalBox& b : set.boxes)
        if (set.ranks[0] == ranks_.rank() && !checks.counted.contains(&b))
          checks.sources[i] += hash_box(sources[i], b.local_offset, b.box, wire(i));
}

// What a bucket sends and receives, and how much memory that takes.
std::unique_ptr<Refit::Flight> Refit::prepare(const Bucket& bucket, std::span<const TensorPart> sources,
                                              std::span<const TensorPart> destinations) const {
  auto flight = std::make_unique<Flight>();
  flight->bucket = &bucket;
  const size_t n = static_cast<size_t>(ranks_.size());
  flight->send.resize(n), flight->recv.resize(n);
  // A box for several ranks is converted once.
  std::map<std::tuple<size_t, std::vector<int64_t>, std::vector<int64_t>>, size_t> known;
  for (const Piece& p : bucket.sends) {
    const Transfer& t = p.transfer;
    const size_t to = static_cast<size_t>(t.destination);
    const DType wire = tensors_[p.tensor].dtype;
    if (sources[p.tensor].dtype == wire) {
      flight->send[to].push_back(memory_box(sources[p.tensor], t.source_offset, t.box.size));
      continue;
    }
    const int64_t bytes = t.box.numel() * dtype_bytes(wire);
    const auto [found, is_new] = known.try_emplace({p.tensor, t.source_offset, t.box.size}, flight->converted.size());
    if (is_new) {
      flight->converted.push_back({&p, flight->converted_bytes, {}});
      flight->converted_bytes += even(bytes);
    }
    flight->converted[found->second].boxes.emplace_back(to, flight->send[to].size());
    flight->send[to].push_back(contiguous_box(nullptr, bytes));
  }
  for (const Piece& p : bucket.receives)
    flight->recv[static_cast<size_t>(p.transfer.source)].push_back(
        memory_box(destinations[p.tensor], p.transfer.destination_offset, p.transfer.box.size));
  flight->bytes = flight->converted_bytes;
  if (!ranks_.shares_memory())
    for (size_t r = 0; r < n; ++r)
      flight->bytes += Communicator::packed_bytes(flight->send[r]) + Communicator::packed_bytes(flight->recv[r]);
  return flight;
}

void Refit::launch(Flight& flight, std::span<const TensorPart> sources, Staging& staging) const {
  flight.memory = staging.take(flight.bytes);
  std::byte* const memory = flight.memory.memory.get();
  for (const Flight::Converted& c : flight.converted) {
    const Piece& p = *c.piece;
    convert_box(sources[p.tensor], p.transfer.source_offset, p.transfer.box, wire(p.tensor), memory + c.at);
    for (const auto& [to, i] : c.boxes) flight.send[to][i].data = memory + c.at;
  }
  flight.work = ranks_.exchange(std::move(flight.send), std::move(flight.recv), kPurpose, memory + flight.converted_bytes);
}

RefitReport Refit::run(std::span<const TensorPart> sources, std::span<const TensorPart> destinations) {
  if (running_) throw ValueError("a refit is under way: the next one begins when it has ended");
  const TraceSpan span("refit");
  check_parts(sources, destinations);
  running_ = true;
  struct Done {
    Refit* refit;
    ~Done() { refit->running_ = false, refit->scales_.drop(); }
  } done{this};
  const double start = real_clock().now();
  RefitReport report;
  report.buckets = std::ssize(buckets_);
  const auto counted = [&] { return ranks_.stats().of(OpKind::kExchange, ranks_.axis(), kPurpose); };
  const CommBytes before_run = counted();
  Checks checks;
  checks.sources.resize(tensors_.size());
  checks.destinations.resize(tensors_.size());
  scales_.join(tensors_, sources, ranks_);
  scales_.write(tensors_, destinations, ranks_.rank());
  Staging staging{options_.watermark};
  std::deque<std::unique_ptr<Flight>> flying;
  int64_t in_flight = 0, landed = 0;
  const auto land = [&] {
    if (landed == 0) {  // while the first buckets travel
      copy_own(sources, destinations, checks, report);
      if (options_.verify) hash_sources(sources, checks);
    }
    const std::unique_ptr<Flight> flight = std::move(flying.front());
    flying.pop_front();
    flight->work.wait();
    ++landed;
    in_flight -= flight->bytes;
    staging.give(std::move(flight->memory));
    if (options_.progress) options_.progress(landed, report.buckets);
    if (!options_.verify) return;
    checks.received.emplace_back();
    for (const Piece& p : flight->bucket->receives) {
      checks.received.back().push_back(
          hash_box(destinations[p.tensor], p.transfer.destination_offset, p.transfer.box, wire(p.tensor)));
      checks.destinations[p.tensor] += checks.received.back().back();
    }
  };
  for (const Bucket& bucket : buckets_) {
    std::unique_ptr<Flight> next = prepare(bucket, sources, destinations);
    while (!flying.empty() && (flying.size() == kFlights || in_flight + next->bytes > options_.watermark)) land();
    launch(*next, sources, staging);
    in_flight += next->bytes;
    report.peak_in_flight = std::max(report.peak_in_flight, in_flight);
    flying.push_back(std::move(next));
  }
  while (!flying.empty()) land();
  report.sent = counted().sent - before_run.sent;
  report.received = counted().received - before_run.received;
  if (options_.verify) {
    const std::string differs = scales_.where_wrong(tensors_, destinations, ranks_);
    if (!differs.empty()) throw RefitError("refit: " + differs);
    compare(sources, checks, report);
  }
  report.seconds = real_clock().now() - start;
  return report;
}

void Refit::compare(std::span<const TensorPart> sources, const Checks& checks, RefitReport& report) const {
  const size_t n = static_cast<size_t>(ranks_.size()), tensors = tensors_.size();
  std::vector<uint64_t> mine = checks.sources, all(2 * tensors * n);
  mine.insert(mine.end(), checks.destinations.begin(), checks.destinations.end());
  ranks_.all_gather(mine.data(), all.data(), std::vector<int64_t>(n, std::ssize(mine)), DType::kI64, kChecksPurpose).wait();
  const auto share = [&](int64_t rank, size_t half, size_t tensor) {
    return all[(static_cast<size_t>(rank) * 2 + half) * tensors + tensor];
  };
  std::vector<std::pair<size_t, size_t>> wrong;  // tensor, copy
  for (size_t i = 0; i < tensors; ++i) {
    report.hashes.push_back(0);
    for (size_t r = 0; r < n; ++r) report.hashes.back() += share(static_cast<int64_t>(r), 0, i);
    // Copy k is held by the k-th rank of each set.
    size_t copies = tensors_[i].to.empty() ? 0 : SIZE_MAX;
    for (const HolderSet& set : tensors_[i].to) copies = std::min(copies, set.ranks.size());
    for (size_t k = 0; k < copies; ++k) {
      uint64_t sum = 0;
      for (const HolderSet& set : tensors_[i].to) sum += share(set.ranks[k], 1, i);
      if (sum != report.hashes.back()) wrong.emplace_back(i, k);
    }
  }
  if (wrong.empty()) return;  // on all ranks alike
  throw RefitError(fmt::format("refit: {} of {} tensors did not arrive as they are in the trainer; {}", wrong.size(), tensors,
                               where_wrong(sources, checks, wrong.front())));
}

// Senders hash what they sent of this tensor, and the receivers compare.
std::string Refit::where_wrong(std::span<const TensorPart> sources, const Checks& checks, std::pair<size_t, size_t> wrong) const {
  const RefitTensor& t = tensors_[wrong.first];
  const size_t n = static_cast<size_t>(ranks_.size());
  std::vector<std::vector<uint64_t>> out(n), here(n);
  std::vector<std::vector<const Transfer*>> transfers(n);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (const Piece& p : buckets_[b].sends)
      if (p.tensor == wrong.first)
        out[static_cast<size_t>(p.transfer.destination)].push_back(
            hash_box(sources[p.tensor], p.transfer.source_offset, p.transfer.box, wire(p.tensor)));
    for (size_t i = 0; i < buckets_[b].receives.size(); ++i) {
      const Piece& p = buckets_[b].receives[i];
      if (p.tensor != wrong.first) continue;
      here[static_cast<size_t>(p.transfer.source)].push_back(checks.received[b][i]);
      transfers[static_cast<size_t>(p.transfer.source)].push_back(&p.transfer);
    }
  }
  std::vector<int64_t> send_counts, recv_counts;
  std::vector<uint64_t> sent, received;
  for (size_t r = 0; r < n; ++r) {
    send_counts.push_back(std::ssize(out[r]));
    recv_counts.push_back(std::ssize(here[r]));
    sent.insert(sent.end(), out[r].begin(), out[r].end());
  }
  received.resize(static_cast<size_t>(std::accumulate(recv_counts.begin(), recv_counts.end(), int64_t{0})));
  ranks_.all_to_all(sent.data(), send_counts, received.data(), recv_counts, DType::kI64, kChecksPurpose).wait();
  std::string text;
  size_t at = 0;
  for (size_t r = 0; r < n; ++r)
    for (size_t i = 0; i < here[r].size(); ++i, ++at)
      if (here[r][i] != received[at] && text.empty())
        text = fmt::format("{} from rank {} to rank {}", box_text(transfers[r][i]->box), r, ranks_.rank());
  // The first rank that saw something tells all.
  const int64_t length = std::ssize(text);
  std::vector<int64_t> lengths(n);
  ranks_.all_gather(&length, lengths.data(), std::vector<int64_t>(n, 1), DType::kI64, kChecksPurpose).wait();
  const auto witness = std::find_if(lengths.begin(), lengths.end(), [](int64_t l) { return l > 0; });
  if (witness == lengths.end())
    return fmt::format("the first is {}, copy {}: every box is as it was sent, so the plan or a local copy is at fault", t.name,
                       wrong.second);
  text.resize(static_cast<size_t>(*witness));
  ranks_.broadcast(text.data(), *witness, DType::kU8, static_cast<int>(witness - lengths.begin()), kChecksPurpose).wait();
  return fmt::format("the first is {}: {}", t.name, text);
}

}  // namespace weft
