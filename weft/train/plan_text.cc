// `weft plan` in a terminal: aligned tables, least and most over the ranks.
#include <algorithm>
#include <numeric>

#include "weft/train/plan.h"
#include "weft/train/plan_format.h"

namespace weft {
namespace {

struct Range {
  int64_t least = 0, most = 0, rank = 0;  // rank: the fullest
};
Range range_of(const std::vector<int64_t>& bytes) {
  const auto low = std::min_element(bytes.begin(), bytes.end()), high = std::max_element(bytes.begin(), bytes.end());
  return {*low, *high, high - bytes.begin()};
}

void memory_table(std::string& out, const std::string& title, const MemoryPlan& m, int64_t world) {
  out += fmt::format("\n{} ({} rank{}), bytes a rank\n", title, world, world == 1 ? "" : "s");
  const auto line = [&](const std::string& name, const Range& r, const std::string& what) {
    out += fmt::format("  {:<18} {:>11}   {:<22} {}\n", name, size_text(r.most),
                       size_text(r.least) == size_text(r.most) ? "" : fmt::format("(least {})", size_text(r.least)), what);
  };
  std::vector<int64_t> totals;
  for (int64_t r = 0; r < world; ++r) totals.push_back(m.total(r));
  for (const MemoryKind& k : m.kinds)
    if (const Range r = range_of(k.bytes); r.most > 0) line(k.name, r, k.what);
  const Range all = range_of(totals);
  line("total", all, fmt::format("the fullest is rank {}", all.rank));
}

void weights_table(std::string& out, const Plan& p) {
  out += fmt::format("\nparameters: {} in {} tensors of {} kinds; the most elements that a rank keeps\n",
                     count_text(p.table.num_parameters()), p.table.rows.size(), p.weights.size());
  out += fmt::format("  {:<52} {:>4}  {:<20} {:<30} {:>10}   {:<14} {:>10}\n", "", "", "shape", "trainer cuts", "keeps",
                     "rollout cuts", "keeps");
  for (const WeightRow& w : p.weights)
    out += fmt::format("  {:<52} {:>4}  {:<20} {:<30} {:>10}   {:<14} {:>10}\n", w.name, fmt::format("x{}", w.count),
                       shape_text(w.shape), w.train, count_text(w.train_elements), w.rollout, count_text(w.rollout_elements));
}

std::string bandwidth_text(const PlanOptions& o) {
  std::string out = fmt::format("{:g} GB/s each way", o.bandwidth_gb);
  for (const auto& [axis, gb] : o.axis_bandwidth_gb) out += fmt::format(", {} {:g}", axis, gb);
  return out;
}

void traffic_table(std::string& out, const Plan& p) {
  if (p.traffic.rows.empty()) return;
  out += fmt::format(
      "\ncollectives of one update of the trainer ({} micro-batch{} of {} tokens), bytes of the busiest rank; time at {}\n",
      p.options.micro_batches, p.options.micro_batches == 1 ? "" : "es", p.options.tokens(), bandwidth_text(p.options));
  out += fmt::format("  {:<12} {:<16} {:>10} {:>11} {:>11} {:>11} {:>11}\n", "axis", "purpose", "operations", "sent", "received",
                     "all ranks", "time");
  int64_t sent = 0, received = 0;
  for (const TrafficRow& row : p.traffic.rows) {
    const int64_t s = range_of(row.sent).most, r = range_of(row.received).most;
    sent += s, received += r;
    out += fmt::format("  {:<12} {:<16} {:>10} {:>11} {:>11} {:>11} {:>11}\n", row.axis, row.purpose,
                       range_of(row.operations).most, size_text(s), size_text(r),
                       size_text(std::accumulate(row.sent.begin(), row.sent.end(), 0.0)), time_text(p.seconds(row)));
  }
  out += fmt::format("  {:<12} {:<16} {:>10} {:>11} {:>11} {:>11} {:>11}\n", "total", "", "", size_text(sent),
                     size_text(received), "", time_text(p.traffic_seconds()));
}

void refit_table(std::string& out, const Plan& p) {
  const RefitSummary& s = p.refit;
  const auto ranks = [](const std::map<int64_t, int64_t>& m) { return static_cast<double>(std::max<size_t>(1, m.size())); };
  int64_t needed = 0;
  for (const auto& [rank, bytes] : s.load.needed) needed += bytes;
  out += fmt::format("\nrefit: trainer to rollout, {} on the wire ({})\n", dtype_name(p.options.rollout_dtype),
                     s.listed ? "transfer by transfer" : "loads made even; single transfers are not listed");
  const auto line = [&](const char* name, const std::string& value, const std::string& what) {
    out += fmt::format("  {:<18} {:>11}   {}\n", name, value, what);
  };
  line("kept", size_text(s.max_needed),
       fmt::format("the most that a rank of the rollout keeps; all ranks {}", size_text(needed)));
  line("received", size_text(s.max_received),
       fmt::format("the most; mean of the {} ranks that receive {}; all {}: what is there already does not move",
                   s.load.received.size(), size_text(static_cast<double>(s.total_received) / ranks(s.load.received)),
                   size_text(s.total_received)));
  line("sent", size_text(s.max_sent),
       fmt::format("the most; mean of the {} ranks that send {}", s.load.sent.size(),
                   size_text(static_cast<double>(s.total_received) / ranks(s.load.sent))));
  line("unique", size_text(s.load.unique),
       fmt::format("what any rank lacks, counted once; largest box {}", size_text(s.load.largest_box)));
  line("lower bound", time_text(s.bound_seconds),
       fmt::format("at {:g} GB/s each way: receivers {}, senders {}", p.options.bandwidth("refit") / 1e9,
                   time_text(s.receive_seconds), time_text(s.send_seconds)));
  if (s.load.unique < s.total_received)
    line("  with forwarding", time_text(std::max(s.receive_seconds, s.forward_seconds)),
         fmt::format("if replicas of the rollout gave each other what they got: senders {}", time_text(s.forward_seconds)));
}

}  // namespace

std::string plan_text(const Plan& p) {
  const ModelConfig& c = p.table.config;
  std::string out = fmt::format("{}: {} parameters", c.family, count_text(p.table.num_parameters()));
  if (c.has_moe()) out += fmt::format(", {} active", count_text(p.table.active_parameters()));
  out += fmt::format("; {} layers", c.num_layers);
  if (c.has_moe()) out += fmt::format(" ({} MoE, {} experts, top {})", c.moe_layer_ids().size(), c.moe.num_experts, c.moe.top_k);
  out += fmt::format("\n  trainer  {:<36} {} ranks\n  rollout  {:<36} {} ranks, ", p.train.to_string(), p.train.world(),
                     rollout_text(p.rollout), p.rollout.world());
  const int64_t smaller = std::min(p.train.world(), p.rollout.world());
  out += p.options.apart ? fmt::format("{} to {} of the job: apart\n", p.train.world(), p.job_ranks() - 1)
         : p.train.world() == p.rollout.world()
             ? std::string("the trainer's\n")
             : fmt::format("the first {} of the {} are both roles'; a run wants the same ranks for both, or --apart\n", smaller,
                           p.job_ranks());
  for (const std::string& note : p.table.notes) out += "  note: " + note + "\n";
  weights_table(out, p);
  memory_table(out, "trainer", p.train_memory, p.train.world());
  memory_table(out, "rollout", p.rollout_memory, p.rollout.world());
  int64_t most = 0;
  for (int64_t r = 0; r < p.job_ranks(); ++r) most = std::max(most, p.total(r));
  if (!p.options.apart) {
    const Range shared = range_of(p.shared_weights);
    out +=
        fmt::format("\nboth roles at once on the fullest rank: {}{}\n", size_text(most),
                    shared.most > 0 ? fmt::format(", weights that both read ({} at the most) once", size_text(shared.most)) : "");
  }
  traffic_table(out, p);
  refit_table(out, p);
  if (!p.uneven.empty()) {
    out += "\nwhat does not divide\n";
    for (const UnevenTensor& u : p.uneven)
      out += fmt::format(
          "  {:<8} {:<52} {}{}\n", u.role, u.name, u.why,
          u.most_over_mean > 1 ? fmt::format("; {:.2f} x the mean costs it {}", u.most_over_mean, size_text(u.bytes)) : "");
  }
  if (!p.misfits.empty()) {
    out += fmt::format("\nwhat does not fit into {:g} GB a rank\n", p.options.memory_gb);
    for (const std::string& m : p.misfits) out += "  " + m + "\n";
  } else if (p.options.memory_gb > 0) {
    out += fmt::format("\neverything fits into {:g} GB a rank\n", p.options.memory_gb);
  }
  return out;
}

}  // namespace weft
