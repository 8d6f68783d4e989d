#include "weft/train/plan_traffic.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "weft/comm/traffic.h"
#include "weft/mesh/token_sharing.h"
#include "weft/parallel/tensor_parallel.h"

namespace weft {
namespace {

constexpr int64_t kF = 4;  // bytes of fp32

// Of one rank.
struct Moved {
  int64_t operations = 0, sent = 0, received = 0;
};
using Ledger = std::map<std::pair<std::string, std::string>, Moved>;

// A rank's place in a group.
struct Place {
  int64_t ranks = 1, me = 0;
};

class Books {
 public:
  Books(Ledger& ledger, int64_t times) : ledger_(ledger), times_(times) {}
  void all_reduce(const Place& p, const char* axis, const char* purpose, int64_t count, int64_t width) {
    const int64_t bytes = all_reduce_bytes(count, width, static_cast<int>(p.ranks), static_cast<int>(p.me));
    add(axis, purpose, bytes, bytes);
  }
  // counts by rank.
  void all_gather(const Place& p, const std::string& axis, const char* purpose, const std::vector<int64_t>& counts,
                  int64_t width) {
    const int64_t mine = counts[static_cast<size_t>(p.me)], all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    add(axis, purpose, mine * (p.ranks - 1) * width, (all - mine) * width);
  }
  void reduce_scatter(const Place& p, const std::string& axis, const char* purpose, const std::vector<int64_t>& counts,
                      int64_t width) {
    const int64_t mine = counts[static_cast<size_t>(p.me)], all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    add(axis, purpose, (all - mine) * width, mine * (p.ranks - 1) * width);
  }
  void add(const std::string& axis, const std::string& purpose, int64_t sent, int64_t received) {
    Moved& m = ledger_[{axis, purpose}];
    m.operations += times_;
    m.sent += times_ * sent;
    m.received += times_ * received;
  }

 private:
  Ledger& ledger_;
  int64_t times_;
};

// A rank's coordinates and the sizes of what its axes share.
struct RankPlace {
  int64_t rank = 0, place = 0;  // in (replicate, fsdp)
  Place cp, tp, ep, replica;
};

RankPlace place_of(const ParallelDims& d, int64_t rank) {
  RankPlace p;
  p.rank = rank;
  p.tp = {d.tp, rank % d.tp};
  p.cp = {d.cp, rank / d.tp % d.cp};
  p.place = rank / (d.tp * d.cp);
  p.ep = {d.ep, rank % d.ranks_per_replica() % d.ep};
  p.replica = {d.ranks_per_replica(), rank % d.ranks_per_replica()};
  return p;
}

// Elements of a [rows, width] by the ranks' slices of rows.
std::vector<int64_t> slices(int64_t rows, int64_t ranks, int64_t width) {
  std::vector<int64_t> out;
  for (int64_t r = 0; r < ranks; ++r) {
    const auto [begin, end] = slice_of_rows(rows, ranks, r);
    out.push_back((end - begin) * width);
  }
  return out;
}

class Forwards {
 public:
  Forwards(const ParameterTable& table, const ParallelDims& dims, const PlanOptions& options, const StepRows& rows)
      : t_(table),
        dims_(dims),
        o_(options),
        rows_(rows),
        w_(dtype_bytes(options.param_dtype)),
        hidden_(table.config.hidden_size) {}

  // One micro-batch, forward and backward.
  void micro_batch(const RankPlace& p, int64_t index, Ledger& ledger) const {
    const MicroBatchRows& m = rows_.places[static_cast<size_t>(p.place)][static_cast<size_t>(index)];
    const int64_t fed = m.fed[static_cast<size_t>(p.cp.me)], head = m.head[static_cast<size_t>(p.cp.me)];
    Books once(ledger, 1), forward(ledger, o_.recompute ? 2 : 1);
    const bool tp = dims_.tp > 1, sp = tp && o_.sequence_parallel;
    if (tp) once.all_reduce(p.tp, "tp", "tp_sum", fed * hidden_, kF);  // the embedding
    if (sp) {
      once.all_gather(p.tp, "tp", "rows", slices(fed, dims_.tp, hidden_), kF);  // gradient of the embedding's slice
      once.all_gather(p.tp, "tp", "rows", slices(fed, dims_.tp, hidden_), kF);  // the last residual stream
    }
    if (t_.config.over_encoding) over_encoding(p, fed, once);
    int64_t moe = 0;
    for (const bool is_moe : t_.config.moe_layers) {
      attention(p, m, fed, once, forward);
      if (!is_moe || t_.shared_intermediate_size > 0) block(p, fed, once, forward, fed * hidden_);
      if (is_moe) experts(p, index, moe++, fed, once, forward);
    }
    if (tp) {
      once.all_gather(p.tp, "tp", "vocab_sums", std::vector<int64_t>(static_cast<size_t>(dims_.tp), head * 3), kF);
      once.all_reduce(p.tp, "tp", "tp_sum", head, kF);             // the target's logit
      once.all_reduce(p.tp, "tp", "tp_grad", head * hidden_, kF);  // of the head's input
    }
    if (dims_.cp > 1)
      for (int i = 0; i < (rows_.entropy ? 2 : 1); ++i) once.all_gather(p.cp, "cp", "tokens", m.head, kF);
  }

 private:
  // A column- and a row-parallel product; input_grad: elements of the input's gradient that are summed.
  void block(const RankPlace& p, int64_t fed, Books& once, Books& forward, int64_t input_grad) const {
    if (dims_.tp == 1) return;
    const std::vector<int64_t> counts = slices(fed, dims_.tp, hidden_);
    if (o_.sequence_parallel) {
      forward.all_gather(p.tp, "tp", "rows", counts, w_);
      forward.reduce_scatter(p.tp, "tp", "tp_sum", counts, kF);
      once.all_gather(p.tp, "tp", "rows", counts, kF);
      once.reduce_scatter(p.tp, "tp", "tp_grad", counts, kF);
    } else {
      forward.all_reduce(p.tp, "tp", "tp_sum", fed * hidden_, kF);
      once.all_reduce(p.tp, "tp", "tp_grad", input_grad, kF);
    }
  }

  void attention(const RankPlace& p, const MicroBatchRows& m, int64_t fed, Books& once, Books& forward) const {
    int64_t input_grad = fed * hidden_;
    std::vector<int64_t> kv{std::max<int64_t>(1, t_.config.num_kv_heads / dims_.tp) * t_.config.head_dim};
    kv.push_back(kv[0]);
    if (t_.latent) {  // heads read the latents: their gradients are summed, and with cp they are what is gathered
      const LatentAttentionConfig& l = *t_.latent;
      const int64_t latents = l.kv_lora_rank + l.qk_rope_head_dim;
      input_grad = fed * (latents + (l.q_lora_rank > 0 ? l.q_lora_rank : hidden_));
      kv = {latents};
    }
    block(p, fed, once, forward, input_grad);
    if (dims_.cp == 1) return;
    for (const int64_t width : kv) {
      std::vector<int64_t> counts = m.fed;
      for (int64_t& n : counts) n *= width;
      forward.all_gather(p.cp, "cp", "kv", counts, w_);
      once.all_gather(p.cp, "cp", "kv", counts, w_);  // again, for the backward
      once.reduce_scatter(p.cp, "cp", "kv_grad", counts, kF);
    }
  }

  void experts(const RankPlace& p, int64_t index, int64_t layer, int64_t fed, Books& once, Books& forward) const {
    const int64_t k = t_.config.moe.top_k;
    if (dims_.tp > 1 && !o_.sequence_parallel) {  // each tp rank does its slice of the rows
      forward.all_gather(p.tp, "tp", "rows", slices(fed, dims_.tp, hidden_), kF);
      once.all_gather(p.tp, "tp", "rows", slices(fed, dims_.tp, hidden_), w_);
      once.all_gather(p.tp, "tp", "rows", slices(fed, dims_.tp, k), kF);
    }
    if (dims_.ep == 1) return;
    const int64_t n = t_.config.moe.num_experts, chunk = (n + dims_.ep - 1) / dims_.ep;
    const auto first = [&](int64_t r) { return std::min(n, r * chunk); };
    const int64_t own = first(p.ep.me + 1) - first(p.ep.me), group = p.rank - p.ep.me;
    const int64_t unit = hidden_ * w_;
    int64_t out = 0, in = 0;  // rows to and from other ranks
    for (int64_t r = 0; r < dims_.ep; ++r) {
      if (r == p.ep.me) continue;
      out += slots(p.rank, index, layer, first(r), first(r + 1));
      in += slots(group + r, index, layer, first(p.ep.me), first(p.ep.me + 1));
    }
    forward.add("ep", "dispatch_counts", (n - own) * 8, own * (dims_.ep - 1) * 8);
    forward.add("ep", "dispatch", out * unit, in * unit);
    forward.add("ep", "combine", in * unit, out * unit);
    once.add("ep", "combine", out * unit, in * unit);  // gradients go the other way
    once.add("ep", "dispatch", in * unit, out * unit);
  }

  // Of a rank's rows, to experts [begin, end).
  int64_t slots(int64_t rank, int64_t index, int64_t layer, int64_t begin, int64_t end) const {
    if (rows_.experts) {
      const std::vector<int64_t> counts = rows_.experts(rank, index, layer);
      return std::accumulate(counts.begin() + begin, counts.begin() + end, int64_t{0});
    }
    const RankPlace p = place_of(dims_, rank);
    const MicroBatchRows& m = rows_.places[static_cast<size_t>(p.place)][static_cast<size_t>(index)];
    const auto [first, last] = slice_of_rows(m.fed[static_cast<size_t>(p.cp.me)], dims_.tp, p.tp.me);
    const int64_t all = (last - first) * t_.config.moe.top_k, n = t_.config.moe.num_experts;
    return all * end / n - all * begin / n;
  }

  // Every tp rank looks up its slice of the rows and gets the others'. What ids travel over "oe" depends on the tokens.
  void over_encoding(const RankPlace& p, int64_t fed, Books& once) const {
    if (dims_.tp == 1) return;
    const int64_t tables = over_encoding_tables(*t_.config.over_encoding);
    for (int64_t e = 0; e < tables; ++e) once.all_gather(p.tp, "tp", "rows", slices(fed, dims_.tp, hidden_ / tables), kF);
  }

  const ParameterTable& t_;
  const ParallelDims& dims_;
  const PlanOptions& o_;
  const StepRows& rows_;
  const int64_t w_, hidden_;
};

// Each layer is gathered for the forward and again for the backward of a micro-batch, the outermost group once; gradients are
// reduced over the shards in every micro-batch, over the axes that hold terms or copies in the last.
void weights(const WeightKinds& kinds, const std::vector<PlacedKind>& placed, const ParallelDims& dims,
             const PlanOptions& options, int64_t micro_batches, std::vector<Ledger>& ledgers) {
  std::vector<int64_t> gathers(kinds.kinds.size(), 0);
  for (size_t g = 0; g < kinds.groups.size(); ++g)
    for (size_t k : kinds.groups[g]) gathers[k] += g == 0 ? 1 : 2;
  int64_t parameters = 0;
  for (size_t k = 0; k < placed.size(); ++k) {
    const WeightKind& kind = kinds.kinds[k];
    const PlacedKind& at = placed[k];
    const DeviceMesh& mesh = at.placement.layout.mesh();
    const std::string& axis = at.placement.fsdp_axis;
    const int64_t shards = mesh.size(axis), width = kind.rounded ? dtype_bytes(options.param_dtype) : kF;
    const bool copies = !at.placement.layout.cuts_axis(axis);
    const std::vector<int64_t> shard = coordinates_along(mesh, axis);
    std::vector<std::string> terms = at.placement.partial_axes;
    if (dims.replicate > 1) terms.push_back("replicate");
    std::vector<std::vector<int64_t>> place;
    for (const std::string& term : terms) place.push_back(coordinates_along(mesh, term));
    for (size_t r = 0; r < ledgers.size(); ++r) {
      const int64_t own = at.kept[r], all = at.computed[r], others = all - own;
      Books reduce(ledgers[r], kind.count * micro_batches), last(ledgers[r], kind.count);
      if (copies) {
        reduce.all_reduce({shards, shard[r]}, axis.c_str(), "grad", all, kF);
      } else {
        Books gather(ledgers[r], gathers[k] * micro_batches);
        gather.add(axis, "unshard", own * (shards - 1) * width, others * width);
        reduce.add(axis, "grad", others * kF, own * (shards - 1) * kF);
      }
      for (size_t i = 0; i < terms.size(); ++i)
        last.all_reduce({mesh.size(terms[i]), place[i][r]}, terms[i].c_str(), "grad", own, kF);
    }
    parameters += kind.count;
  }
  for (size_t r = 0; r < ledgers.size(); ++r)
    Books(ledgers[r], 1).all_reduce(place_of(dims, static_cast<int64_t>(r)).replica, "replica", "grad_norm", parameters, 8);
}

}  // namespace

int64_t MicroBatchRows::whole() const { return std::accumulate(fed.begin(), fed.end(), int64_t{0}); }

const TrafficRow* TrafficPlan::find(const std::string& axis, const std::string& purpose) const {
  for (const TrafficRow& row : rows)
    if (row.axis == axis && row.purpose == purpose) return &row;
  return nullptr;
}

MicroBatchRows even_micro_batch(const ParallelDims& dims, const PlanOptions& options) {
  MicroBatchRows out;
  const int64_t rows = options.sequence_rows(), first_head = rows - options.head_rows() / options.sequences();
  const std::vector<int64_t> one{0, rows};
  for (int64_t r = 0; r < dims.cp; ++r) {
    int64_t fed = 0, head = 0;
    for (const ContextPiece& p : context_pieces(one, dims.cp, r, ContextSplit::kZigzag)) {
      fed += p.size();
      head += std::max<int64_t>(0, p.end - std::max(p.begin, first_head));
    }
    out.fed.push_back(options.sequences() * fed);
    out.head.push_back(options.sequences() * head);
  }
  return out;
}

StepRows even_rows(const ParallelDims& dims, const PlanOptions& options) {
  const std::vector<MicroBatchRows> place(static_cast<size_t>(options.micro_batches), even_micro_batch(dims, options));
  return {std::vector<std::vector<MicroBatchRows>>(static_cast<size_t>(dims.replicate * dims.fsdp), place), true, {}};
}

TrafficPlan update_traffic(const ParameterTable& table, const WeightKinds& kinds, const std::vector<PlacedKind>& placed,
                           const ParallelDims& dims, const PlanOptions& options, const StepRows& rows) {
  TrafficPlan plan;
  if (dims.world() == 1) return plan;
  const int64_t micro_batches = static_cast<int64_t>(rows.places.at(0).size());
  std::vector<Ledger> ledgers(static_cast<size_t>(dims.world()));
  weights(kinds, placed, dims, options, micro_batches, ledgers);
  const Forwards forwards(table, dims, options, rows);
  const size_t shared = static_cast<size_t>(dims.cp * dims.tp);
  // Even rows make every place alike; ranks repeat with the axes inside a place and with ep.
  const bool alike = !rows.experts && std::all_of(rows.places.begin(), rows.places.end(), [&](const auto& place) {
    return std::equal(place.begin(), place.end(), rows.places[0].begin(), rows.places[0].end(),
                      [](const MicroBatchRows& a, const MicroBatchRows& b) { return a.fed == b.fed && a.head == b.head; });
  });
  const size_t period = std::lcm(shared, static_cast<size_t>(dims.ep));
  std::vector<Ledger> of_rows(alike && dims.world() % static_cast<int64_t>(period) == 0 ? period : ledgers.size());
  for (size_t r = 0; r < of_rows.size(); ++r)
    for (int64_t m = 0; m < micro_batches; ++m) forwards.micro_batch(place_of(dims, static_cast<int64_t>(r)), m, of_rows[r]);
  std::map<std::pair<std::string, std::string>, size_t> known;
  for (size_t r = 0; r < ledgers.size(); ++r) {
    for (const Ledger* ledger : {&ledgers[r], &of_rows[r % of_rows.size()]})
      for (const auto& [key, moved] : *ledger) {
        const auto [at, is_new] = known.try_emplace(key, plan.rows.size());
        if (is_new)
          plan.rows.push_back({key.first, key.second, std::vector<int64_t>(ledgers.size()), std::vector<int64_t>(ledgers.size()),
                               std::vector<int64_t>(ledgers.size())});
        TrafficRow& row = plan.rows[at->second];
        row.operations[r] += moved.operations;
        row.sent[r] += moved.sent;
        row.received[r] += moved.received;
      }
  }
  std::erase_if(plan.rows, [](const TrafficRow& row) {
    const auto none = [](int64_t n) { return n == 0; };
    return std::all_of(row.sent.begin(), row.sent.end(), none) && std::all_of(row.received.begin(), row.received.end(), none);
  });
  std::sort(plan.rows.begin(), plan.rows.end(),
            [](const TrafficRow& a, const TrafficRow& b) { return std::tie(a.axis, a.purpose) < std::tie(b.axis, b.purpose); });
  return plan;
}

}  // namespace weft
