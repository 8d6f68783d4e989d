#include "weft/checkpoint/export_stream.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/checkpoint/rank_agreement.h"
#include "weft/mesh/plan.h"

namespace weft {
namespace {

constexpr const char* kExportPurpose = "export";

// A part of a tensor that travels in one bucket.
struct ExportPiece {
  size_t tensor = 0;
  Transfer part;
  int64_t bytes = 0;
};

// What the root has to do for a tensor.
struct PlannedExport {
  std::vector<Transfer> own;  // from its own part
  int64_t left = 0;           // bytes that are still to come
};

// The plan, made as the stream goes: thousands of experts would make a long list. The same on every rank.
class ExportPlan {
 public:
  ExportPlan(std::span<const StoredTensor> tensors, const ExportSources& sources, const ExportOptions& options)
      : tensors_(tensors), sources_(sources), root_(options.root), limit_(options.watermark / 2) {}

  // The pieces of the next bucket, at most `limit` bytes; none: there is nothing more.
  std::vector<ExportPiece> next_bucket() {
    std::vector<ExportPiece> bucket;
    int64_t bytes = 0;
    for (;;) {
      while (pieces_.empty() && planned_ < tensors_.size()) plan_next();
      if (pieces_.empty() || bytes + pieces_.front().bytes > limit_) return bucket;
      bytes += pieces_.front().bytes;
      bucket.push_back(std::move(pieces_.front()));
      pieces_.pop_front();
    }
  }

  // Of the next tensor that the root hands out.
  PlannedExport take_tensor() {
    if (ahead_.empty()) plan_next();
    PlannedExport out = std::move(ahead_.front());
    ahead_.pop_front();
    return out;
  }
  // Other ranks hand nothing out.
  void forget_tensors() { ahead_.clear(); }

 private:
  void plan_next() {
    const StoredTensor& t = tensors_[planned_];
    // Experts come one after another out of few parameters: those of a layer.
    if (holders_.size() > 16) holders_.clear();
    const auto [known, is_new] = holders_.try_emplace(t.entry.parameter);
    if (is_new) known->second = sources_(t.entry.parameter).layout.holder_sets();
    const std::vector<HolderSet> to = {{{root_}, {{t.entry.box, std::vector<int64_t>(t.entry.box.size.size(), 0)}}}};
    PlannedExport planned;
    for (Transfer& transfer : plan_copy(known->second, to, std::ssize(t.entry.box.size), &load_)) {
      if (transfer.source == root_) {
        planned.own.push_back(std::move(transfer));
        continue;
      }
      planned.left += transfer.box.numel() * dtype_bytes(t.dtype);
      for_each_part(transfer.box, limit_ / dtype_bytes(t.dtype), [&](const Box& part) {
        pieces_.push_back({planned_, part_of(transfer, part), part.numel() * dtype_bytes(t.dtype)});
      });
    }
    ahead_.push_back(std::move(planned));
    ++planned_;
  }

  std::span<const StoredTensor> tensors_;
  const ExportSources& sources_;
  int64_t root_, limit_;
  size_t planned_ = 0;
  std::deque<ExportPiece> pieces_;   // of planned tensors, in no bucket yet
  std::deque<PlannedExport> ahead_;  // planned, not handed out yet
  std::map<std::string, std::vector<HolderSet>> holders_;
  SendLoad load_;
};

// Memory of one of the two buckets, kept from bucket to bucket.
struct ExportSlot {
  at::Tensor memory;
  std::byte* of(int64_t bytes) {
    if (!memory.defined() || memory.numel() < bytes) {
      memory.reset();
      memory = at::empty({bytes}, at::kByte);
    }
    return static_cast<std::byte*>(memory.data_ptr());
  }
};

// A bucket under way.
struct ExportFlight {
  std::vector<ExportPiece> pieces;
  const std::byte* arrived = nullptr;  // the root's, by sender
  Work work;
};

// The tensors on the root, one at a time.
class ExportReceiver {
 public:
  ExportReceiver(std::span<const StoredTensor> tensors, const ExportSources& sources, ExportPlan& plan, const ExportSink& sink)
      : tensors_(tensors), sources_(sources), plan_(plan), sink_(sink) {}

  // Hands out all that waits for no bucket.
  void advance() {
    while (next_ < tensors_.size()) {
      if (!full_.defined()) begin();
      if (left_ > 0) return;
      const StoredTensor& t = tensors_[next_++];
      const at::Tensor full = std::exchange(full_, at::Tensor());
      sink_(t, full.view(t.entry.shape));
    }
  }

  void take(const ExportFlight& flight, int64_t ranks) {
    std::vector<const std::byte*> from(static_cast<size_t>(ranks), nullptr);  // the next byte of each sender
    const std::byte* at = flight.arrived;
    std::vector<int64_t> bytes(static_cast<size_t>(ranks), 0);
    for (const ExportPiece& p : flight.pieces) bytes[static_cast<size_t>(p.part.source)] += p.bytes;
    for (size_t r = 0; r < from.size(); ++r) from[r] = at, at += bytes[r];
    for (const ExportPiece& p : flight.pieces) {
      advance();
      WEFT_CHECK(p.tensor == next_ && full_.defined(), "a piece of tensor {} while {} is filled", p.tensor, next_);
      // By bytes: pieces of two dtypes need not lie aligned.
      const int64_t item = dtype_bytes(tensors_[next_].dtype);
      auto* const to = static_cast<std::byte*>(full_.data_ptr());
      const std::byte*& source = from[static_cast<size_t>(p.part.source)];
      for_each_run(tensors_[next_].entry.box.size, {p.part.destination_offset, p.part.box.size},
                   [&](int64_t first, int64_t count) {
                     std::memcpy(to + first * item, source, static_cast<size_t>(count * item));
                     source += count * item;
                   });
      left_ -= p.bytes;
    }
    advance();
  }

 private:
  void begin() {
    const StoredTensor& t = tensors_[next_];
    const PlannedExport planned = plan_.take_tensor();
    left_ = planned.left;
    full_ = at::empty(t.entry.box.size, floating_type(t.dtype));
    if (planned.own.empty()) return;
    const at::Tensor local = sources_(t.entry.parameter).local;
    for (const Transfer& own : planned.own)
      narrow_to(full_, {own.destination_offset, own.box.size}).copy_(narrow_to(local, {own.source_offset, own.box.size}));
  }

  std::span<const StoredTensor> tensors_;
  const ExportSources& sources_;
  ExportPlan& plan_;
  const ExportSink& sink_;
  size_t next_ = 0;   // the tensor that is filled
  at::Tensor full_;   // of its entry.box.size
  int64_t left_ = 0;  // bytes of it that are still to come
};

// Starts a bucket: this rank's pieces are packed, in the tensors' dtypes, for the root.
ExportFlight launch_bucket(std::vector<ExportPiece> pieces, std::span<const StoredTensor> tensors, const ExportSources& sources,
                           const Communicator& world, int root, ExportSlot& slot, ExportReport& report) {
  const size_t ranks = static_cast<size_t>(world.size());
  std::vector<int64_t> send(ranks, 0), receive(ranks, 0);
  for (const ExportPiece& p : pieces) {
    if (p.part.source == world.rank()) send[static_cast<size_t>(root)] += p.bytes;
    if (world.rank() == root) receive[static_cast<size_t>(p.part.source)] += p.bytes, report.received += p.bytes;
  }
  report.sent += send[static_cast<size_t>(root)];
  std::byte* const memory = slot.of(world.rank() == root ? std::accumulate(receive.begin(), receive.end(), int64_t{0})
                                                         : send[static_cast<size_t>(root)]);
  std::byte* at = memory;
  for (const ExportPiece& p : pieces) {
    if (p.part.source != world.rank()) continue;
    const StoredTensor& t = tensors[p.tensor];
    const at::Tensor local = sources(t.entry.parameter).local;
    WEFT_CHECK(local.is_cpu() && local.is_contiguous(), "{} is no contiguous part on the CPU", t.entry.parameter);
    const Box box{p.part.source_offset, p.part.box.size};
    if (t.dtype == DType::kF32) {  // may lie behind an odd number of 16-bit elements: by bytes
      std::byte* to = at;
      for_each_run(local.sizes().vec(), box, [&](int64_t first, int64_t count) {
        std::memcpy(to, local.data_ptr<float>() + first, static_cast<size_t>(count) * sizeof(float));
        to += count * static_cast<int64_t>(sizeof(float));
      });
    } else {
      at::from_blob(at, p.part.box.size, floating_type(t.dtype)).copy_(narrow_to(local, box));
    }
    at += p.bytes;
  }
  ExportFlight flight{std::move(pieces), memory, {}};
  flight.work = world.rank() == root ? world.all_to_all(nullptr, send, memory, receive, DType::kU8, kExportPurpose)
                                     : world.all_to_all(memory, send, nullptr, receive, DType::kU8, kExportPurpose);
  return flight;
}

int64_t stored_bytes(const StoredTensor& t) { return t.entry.box.numel() * dtype_bytes(t.dtype); }

}  // namespace

ExportReport export_stream(std::span<const StoredTensor> tensors, const ExportSources& sources, const RankMesh* mesh,
                           const ExportOptions& options, const ExportSink& sink) {
  at::NoGradGuard guard;
  ExportReport report;
  for (const StoredTensor& t : tensors) report.bytes += stored_bytes(t);
  report.tensors = std::ssize(tensors);
  if (!mesh) {
    for (const StoredTensor& t : tensors) {
      const at::Tensor part = narrow_to(sources(t.entry.parameter).local, t.entry.box);
      sink(t, part.to(at::kCPU).to(floating_type(t.dtype)).contiguous().view(t.entry.shape));
    }
    return report;
  }
  const Communicator& world = mesh->world;
  WEFT_CHECK(options.root >= 0 && options.root < world.size(), "root {} of {} ranks", options.root, world.size());
  if (options.watermark / 2 < dtype_bytes(DType::kF32))
    throw ValueError(fmt::format("an export with a watermark of {} bytes cannot send an element: 8 at least", options.watermark));
  const bool root = world.rank() == options.root;
  ExportPlan plan(tensors, sources, options);
  ExportReceiver receiver(tensors, sources, plan, sink);
  ExportSlot slots[2];
  ExportFlight before;
  std::exception_ptr error;  // of the sink
  const auto attempt = [&](const auto& fn) {
    try {
      if (root && !error) fn();
    } catch (const PeerLostError&) {
      throw;  // the job is over
    } catch (const std::exception&) {
      error = std::current_exception();
    }
  };
  for (;;) {
    std::vector<ExportPiece> pieces = plan.next_bucket();
    if (!root) plan.forget_tensors();
    if (pieces.empty()) break;
    // A sink that has failed stops the senders, too.
    int64_t go_on = !error;
    if (report.buckets > 0) world.broadcast(&go_on, 1, DType::kI64, options.root, kExportPurpose).wait();
    if (!go_on) break;
    ExportFlight next =
        launch_bucket(std::move(pieces), tensors, sources, world, options.root, slots[report.buckets++ % 2], report);
    before.work.wait();
    attempt([&] { receiver.take(before, world.size()); });
    before = std::move(next);
  }
  before.work.wait();
  attempt([&] { receiver.take(before, world.size()); });
  together(&world, [&] {
    if (error) std::rethrow_exception(error);
  });
  return report;
}

}  // namespace weft
