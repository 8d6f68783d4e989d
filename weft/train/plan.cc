#include "weft/train/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <sstream>

#include "weft/base/error.h"
#include "weft/train/plan_kinds.h"
#include "weft/train/plan_memory.h"
#include "weft/train/plan_neighbours.h"
#include "weft/train/plan_refit.h"
#include "weft/train/plan_traffic.h"

namespace weft {
namespace {

constexpr int64_t kMaxWorld = 1 << 14;  // of a plan: a refit looks at pairs of ranks (15 s and 3.6 GB here)

void check_options(const PlanOptions& o) {
  const auto need = [](bool ok, const std::string& what) {
    if (!ok) throw UsageError(what);
  };
  constexpr int64_t kMost = int64_t{1} << 32;
  for (DType d : {o.param_dtype, o.rollout_float()})
    need(d == DType::kF32 || d == DType::kBF16, fmt::format("dtype {}: choose float32 or bfloat16", dtype_name(d)));
  for (const int64_t n : {o.max_tokens_per_micro_batch, o.kv_cache_tokens})
    need(n >= 1 && n <= kMost, fmt::format("{} tokens: 1 to {} are possible", n, kMost));
  for (const int64_t n : {o.max_prompt_length, o.max_response_length})
    need(n >= 0 && n <= kMost, fmt::format("a length of {}: 0 to {} are possible", n, kMost));
  need(o.micro_batches >= 1 && o.micro_batches <= 4096, fmt::format("{} micro-batches: 1 to 4096 are possible", o.micro_batches));
  need(o.block_size >= 1 && 64 % o.block_size == 0, fmt::format("block size {}: it divides 64", o.block_size));
  need(o.bandwidth_gb > 0, fmt::format("a bandwidth of {} GB/s: it is above 0", o.bandwidth_gb));
  for (const auto& [axis, gb] : o.axis_bandwidth_gb) {
    static const std::vector<std::string> known = {"replicate", "fsdp", "efsdp",   "cp",      "tp",   "tp_copies",
                                                   "ep",        "oe",   "oe_fsdp", "replica", "refit"};
    need(std::find(known.begin(), known.end(), axis) != known.end(),
         fmt::format("a bandwidth of \"{}\": there are {}", axis, fmt::join(known, ", ")));
    need(gb > 0, fmt::format("a bandwidth of {} GB/s for {}: it is above 0", gb, axis));
  }
  need(o.memory_gb >= 0, fmt::format("a memory of {} GB: it is 0 (not given) or more", o.memory_gb));
}

// Reads a mesh; where only its ep does not divide, with whole meshes that do.
ParallelDims read_mesh(const ParameterTable& table, const std::string& text, bool rollout) {
  const auto read = [&](const std::string& t) {
    return rollout ? parse_rollout_dims(t, 0, table.own_axes) : parse_parallel_dims(t, 0, table.own_axes);
  };
  try {
    return read(text);
  } catch (const UsageError& e) {
    std::string without, entry;
    int64_t ep = 0;
    std::istringstream in(text);
    while (std::getline(in, entry, ',')) {
      if (!entry.starts_with("ep=")) {
        without += (without.empty() ? "" : ",") + entry;
      } else if (std::from_chars(entry.data() + 3, entry.data() + entry.size(), ep).ec != std::errc()) {
        throw;
      }
    }
    if (ep < 2 || ep > kMaxWorld) throw;
    ParallelDims dims;
    try {
      dims = read(without + (rollout ? ",ep=1" : ""));
    } catch (const UsageError&) {
      throw e;  // more is wrong than ep
    }
    // As many ranks with another ep, then this ep with the next number of ranks.
    std::vector<ParallelDims> fit;
    const int64_t experts = table.config.moe.num_experts;
    for (int64_t d = ep; d > 1 && fit.empty(); --d)
      if (dims.ranks_per_replica() % d == 0 && (experts == 0 || experts % d == 0)) fit.push_back(dims), fit.back().ep = d;
    const int64_t others = dims.cp * dims.tp, unit = std::lcm(others, ep) / others;
    fit.push_back(dims);
    fit.back().fsdp = (dims.fsdp + unit - 1) / unit * unit, fit.back().ep = ep;
    throw UsageError(fmt::format("{}; the nearest meshes that work: {}", e.what(), mesh_list(fit, rollout)));
  }
}

// Refuses a mesh that the model's shape forbids, with those that work.
void check_mesh_of(const ParameterTable& table, const WeightKinds& kinds, const ParallelDims& dims, bool rollout) {
  const std::string role = rollout ? "--rollout" : "--train", text = rollout ? rollout_text(dims) : dims.to_string();
  if (dims.world() > kMaxWorld)
    throw UsageError(fmt::format("{} {}: {} ranks; a plan has at most {}", role, text, dims.world(), kMaxWorld));
  try {
    check_kinds(table, kinds, dims);
  } catch (const UsageError& e) {
    const auto works = [&](const ParallelDims& d) {
      try {
        check_kinds(table, kinds, d);
        return true;
      } catch (const UsageError&) {
        return false;
      }
    };
    const std::vector<ParallelDims> near =
        nearest_meshes(dims, rollout, table.config.has_moe() ? table.config.moe.num_experts : 0, true, 4, 64, works);
    throw UsageError(fmt::format("{} {}: {}; the nearest meshes that work: {}", role, text, e.what(),
                                 near.empty() ? "none found" : mesh_list(near, rollout)));
  }
}

std::vector<std::vector<int64_t>> shares_of(const WeightKinds& kinds, const std::vector<PlacedKind>& placed, bool kept,
                                            const PlanOptions& o) {
  std::vector<std::vector<int64_t>> out(weight_categories().size());
  for (auto& bytes : out) bytes.resize(placed[0].kept.size());
  for (size_t k = 0; k < placed.size(); ++k) {
    const WeightKind& kind = kinds.kinds[k];
    const std::vector<int64_t>& elements = kept ? placed[k].kept : placed[k].computed;
    const int64_t width = kept ? 4 : dtype_bytes(kind.rollout_type(o.rollout_dtype, o.param_dtype));
    for (size_t r = 0; r < elements.size(); ++r) out[static_cast<size_t>(kind.category)][r] += elements[r] * width * kind.count;
  }
  return out;
}

std::string cuts_text(const Layout& layout) {
  std::string out;
  for (const Cut& cut : layout.cuts())
    if (layout.mesh().size(cut.axis) > 1)
      out += fmt::format("{}{} {}: dim {}", out.empty() ? "" : ", ", cut.axis, layout.mesh().size(cut.axis), cut.dim);
  return out.empty() ? "copies" : out;
}

std::vector<WeightRow> weight_rows(const WeightKinds& kinds, const std::vector<PlacedKind>& train,
                                   const std::vector<PlacedKind>& rollout) {
  std::vector<WeightRow> out;
  for (size_t k = 0; k < kinds.kinds.size(); ++k) {
    const WeightKind& kind = kinds.kinds[k];
    out.push_back({kind.name, kind.shape, kind.count, cuts_text(train[k].placement.layout),
                   cuts_text(rollout[k].placement.computed),
                   kind.count * *std::max_element(train[k].kept.begin(), train[k].kept.end()),
                   kind.count * *std::max_element(rollout[k].computed.begin(), rollout[k].computed.end())});
  }
  return out;
}

void add_uneven(const WeightKinds& kinds, const std::vector<PlacedKind>& placed, const ParallelDims& dims, bool rollout,
                const ParameterTable& table, std::vector<UnevenTensor>& out) {
  for (size_t k = 0; k < placed.size(); ++k) {
    const std::vector<int64_t>& n = rollout ? placed[k].computed : placed[k].kept;
    const int64_t most = *std::max_element(n.begin(), n.end()), empty = std::count(n.begin(), n.end(), 0);
    const double mean = static_cast<double>(std::accumulate(n.begin(), n.end(), int64_t{0})) / static_cast<double>(n.size());
    if (mean == 0 || static_cast<double>(most) <= 1.02 * mean) continue;
    out.push_back(
        {rollout ? "rollout" : "train", kinds.kinds[k].name,
         fmt::format("{} of {} ranks hold none of it, the fullest {} of {} elements", empty, n.size(), most,
                     std::accumulate(kinds.kinds[k].shape.begin(), kinds.kinds[k].shape.end(), int64_t{1}, std::multiplies<>())),
         static_cast<double>(most) / mean, static_cast<int64_t>((static_cast<double>(most) - mean) * 4) * kinds.kinds[k].count});
  }
  if (!table.latent && table.config.num_kv_heads < dims.tp)
    out.push_back({rollout ? "rollout" : "train", "k_proj, v_proj",
                   fmt::format("{} key/value heads on {} ranks of tp: {} ranks hold the same", table.config.num_kv_heads, dims.tp,
                               dims.tp / table.config.num_kv_heads),
                   1, 0});
}

// The largest n in [1, high) for which fits(n), which holds for all smaller ones, too; 0: none.
int64_t largest(int64_t high, const std::function<bool(int64_t)>& fits) {
  int64_t low = 0;
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

// What else than another mesh would make the trainer fit.
std::string trainer_advice(const Plan& p, const WeightKinds& kinds, const std::vector<PlacedKind>& placed, double memory) {
  std::string out;
  PlanOptions o = p.options;
  o.recompute = true;
  const auto peak = [&] { return static_cast<double>(train_memory(p.table, kinds, placed, p.train, o).peak()); };
  if (!p.options.recompute) out += fmt::format("; with --recompute {:.1f} GB", peak() / 1e9);
  if (peak() <= memory || o.max_response_length > 0) return out;
  const int64_t tokens = largest(o.max_tokens_per_micro_batch, [&](int64_t n) {
    o.max_tokens_per_micro_batch = n;
    return peak() <= memory;
  });
  if (tokens > 0) out += fmt::format("; with --recompute and {} tokens a micro-batch it fits", tokens);
  return out;
}

std::string rollout_advice(const Plan& p, double memory) {
  int64_t tokens = p.options.kv_cache_tokens;
  const int64_t ranks = p.rollout.world();
  for (int64_t r = 0; r < ranks; ++r) {
    const int64_t kv = p.rollout_memory.of("kv_blocks", r), rest = p.rollout_memory.total(r) - kv;
    const double a_token = static_cast<double>(kv) / static_cast<double>(p.options.kv_cache_tokens);
    tokens = std::min(tokens, static_cast<int64_t>((memory - static_cast<double>(rest)) / a_token));
  }
  tokens = tokens / p.options.block_size * p.options.block_size;
  return tokens > 0 ? fmt::format("; with --kv-cache-tokens {} it fits", tokens) : "";
}

// What the memory of a rank does not hold, and meshes whose does.
void add_misfits(Plan& p, const WeightKinds& kinds, const std::vector<PlacedKind>& train) {
  if (p.options.memory_gb <= 0) return;
  const double memory = p.options.memory_gb * 1e9;
  const int64_t experts = p.table.config.has_moe() ? p.table.config.moe.num_experts : 0;
  const auto check = [&](const char* role, const MemoryPlan& m, const ParallelDims& dims, bool rollout) {
    if (static_cast<double>(m.peak()) <= memory) return;
    const auto fits = [&](const ParallelDims& d) {
      try {
        const std::vector<PlacedKind> placed = place_kinds(p.table, kinds, d);
        const MemoryPlan other =
            rollout ? rollout_memory(p.table, kinds, placed, d, p.options) : train_memory(p.table, kinds, placed, d, p.options);
        return static_cast<double>(other.peak()) <= memory;
      } catch (const UsageError&) {
        return false;
      }
    };
    const std::vector<ParallelDims> near = nearest_meshes(dims, rollout, experts, true, 3, 10, fits);
    p.misfits.push_back(
        fmt::format("{} needs {:.1f} GB on its fullest rank and has {:.1f}; {}{}", role, static_cast<double>(m.peak()) / 1e9,
                    p.options.memory_gb,
                    near.empty() ? "none of the meshes nearby fits" : "the nearest meshes that fit: " + mesh_list(near, rollout),
                    rollout ? rollout_advice(p, memory) : trainer_advice(p, kinds, train, memory)));
  };
  check("the trainer", p.train_memory, p.train, false);
  check("the rollout", p.rollout_memory, p.rollout, true);
  if (p.options.apart || !p.misfits.empty()) return;
  int64_t most = 0;
  for (int64_t r = 0; r < p.job_ranks(); ++r) most = std::max(most, p.total(r));
  if (static_cast<double>(most) > memory)
    p.misfits.push_back(
        fmt::format("each role fits by itself, both at once need {:.1f} GB and there are {:.1f}: let one sleep while "
                    "the other works, or put the rollout on ranks of its own (--apart)",
                    static_cast<double>(most) / 1e9, p.options.memory_gb));
}

}  // namespace

const std::vector<std::string>& weight_categories() {
  static const std::vector<std::string> names = {"experts", "attention", "mlp", "embeddings", "norms_router_biases"};
  return names;
}

int64_t Plan::job_ranks() const {
  return options.apart ? train.world() + rollout.world() : std::max(train.world(), rollout.world());
}

int64_t Plan::total(int64_t job_rank) const {
  int64_t bytes = job_rank < train.world() ? train_memory.total(job_rank) : 0;
  const int64_t r = options.apart ? job_rank - train.world() : job_rank;
  if (r >= 0 && r < rollout.world()) bytes += rollout_memory.total(r);
  if (job_rank < std::ssize(shared_weights)) bytes -= shared_weights[static_cast<size_t>(job_rank)];
  return bytes;
}

double PlanOptions::bandwidth(const std::string& axis) const {
  const auto at = axis_bandwidth_gb.find(axis);
  return (at == axis_bandwidth_gb.end() ? bandwidth_gb : at->second) * 1e9;
}

double Plan::seconds(const TrafficRow& row) const {
  int64_t most = 0;
  for (size_t r = 0; r < row.sent.size(); ++r) most = std::max({most, row.sent[r], row.received[r]});
  return static_cast<double>(most) / options.bandwidth(row.axis);
}

double Plan::traffic_seconds() const {
  double sum = 0;
  for (const TrafficRow& row : traffic.rows) sum += seconds(row);
  return sum;
}

PlanMeshes read_plan_meshes(const ParameterTable& table, const std::string& train_mesh, const std::string& rollout_mesh) {
  const PlanMeshes out{read_mesh(table, train_mesh, false), read_mesh(table, rollout_mesh, true)};
  const WeightKinds kinds = kinds_of(table);
  check_mesh_of(table, kinds, out.train, false);
  check_mesh_of(table, kinds, out.rollout, true);
  return out;
}

Plan make_plan(const HfConfig& hf, const std::string& train_mesh, const std::string& rollout_mesh, const PlanOptions& options,
               const std::vector<Family>& extra) {
  check_options(options);
  Plan p;
  p.options = options;
  p.table = parameter_table(hf, options.sequence_parallel, extra);
  const PlanMeshes meshes = read_plan_meshes(p.table, train_mesh, rollout_mesh);
  p.train = meshes.train, p.rollout = meshes.rollout;
  const WeightKinds kinds = kinds_of(p.table);
  const std::vector<PlacedKind> train = place_kinds(p.table, kinds, p.train), rollout = place_kinds(p.table, kinds, p.rollout);
  p.train_memory = train_memory(p.table, kinds, train, p.train, options);
  p.rollout_memory = rollout_memory(p.table, kinds, rollout, p.rollout, options);
  p.shared_weights = shared_weights(kinds, train, rollout, options);
  p.traffic = update_traffic(p.table, kinds, train, p.train, options, even_rows(p.train, options));
  p.refit = refit_summary(p.table, p.train, p.rollout, options);
  p.weights = weight_rows(kinds, train, rollout);
  p.train_shares = shares_of(kinds, train, true, options);
  p.rollout_shares = shares_of(kinds, rollout, false, options);
  add_uneven(kinds, train, p.train, false, p.table, p.uneven);
  add_uneven(kinds, rollout, p.rollout, true, p.table, p.uneven);
  add_misfits(p, kinds, train);
  return p;
}

}  // namespace weft
