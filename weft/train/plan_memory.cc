#include "weft/train/plan_memory.h"

#include <algorithm>
#include <map>
#include <set>

#include "weft/refit/tensor_part.h"
#include "weft/train/plan_activations.h"
#include "weft/train/plan_traffic.h"

namespace weft {
namespace {

using Bytes = std::vector<int64_t>;

int64_t width(const WeightKind& k, DType dtype) { return k.rounded ? dtype_bytes(dtype) : 4; }

// Panels of sixteen outputs; bf16 in pairs of K; behind int8 ones, from a cache line on, their scales (kernels/gemm.h).
int64_t panel_bytes(const std::vector<int64_t>& shape, int64_t element) {
  const size_t d = shape.size();
  const int64_t n = (d == 3 ? shape[0] : 1) * ((shape[d - 2] + 15) / 16 * 16), k = shape[d - 1];
  if (element == 1) return (n * k + 63) / 64 * 64 + n * 4;
  return n * (element == 2 ? (k + 1) / 2 * 2 : k) * element;
}

template <class Of>
Bytes sum_over(const WeightKinds& kinds, size_t ranks, const Of& of) {
  Bytes out(ranks, 0);
  for (size_t k = 0; k < kinds.kinds.size(); ++k)
    for (size_t r = 0; r < ranks; ++r) out[r] += kinds.kinds[k].count * of(k, r);
  return out;
}

// Of each group: by(kind, rank). Equal layers are looked at once.
template <class Of>
std::vector<const Bytes*> over_groups(const WeightKinds& kinds, size_t ranks, std::map<std::vector<size_t>, Bytes>& known,
                                      const Of& of) {
  std::vector<const Bytes*> out;
  for (const std::vector<size_t>& group : kinds.groups) {
    const auto [at, is_new] = known.try_emplace(group);
    if (is_new) {
      at->second.assign(ranks, 0);
      for (size_t k : group)
        for (size_t r = 0; r < ranks; ++r) at->second[r] += of(k, r);
    }
    out.push_back(&at->second);
  }
  return out;
}

// The outermost group and the largest pair of layers that follow each other.
Bytes root_and_pair(const std::vector<const Bytes*>& groups, size_t ranks) {
  Bytes out = *groups[0];
  std::set<std::pair<const Bytes*, const Bytes*>> pairs;
  for (size_t g = 1; g < groups.size(); ++g) pairs.insert({groups[g], g + 1 < groups.size() ? groups[g + 1] : nullptr});
  for (size_t r = 0; r < ranks; ++r) {
    int64_t most = 0;
    for (const auto& [a, b] : pairs) most = std::max(most, (*a)[r] + (b ? (*b)[r] : 0));
    out[r] += most;
  }
  return out;
}

Bytes largest(const std::vector<const Bytes*>& groups, size_t from, size_t ranks) {
  Bytes out(ranks, 0);
  const std::set<const Bytes*> distinct(groups.begin() + static_cast<std::ptrdiff_t>(from), groups.end());
  for (const Bytes* g : distinct)
    for (size_t r = 0; r < ranks; ++r) out[r] = std::max(out[r], (*g)[r]);
  return out;
}

std::vector<Bytes> panels_by_rank(const WeightKinds& kinds, const std::vector<PlacedKind>& placed, DType dtype,
                                  DType param_dtype) {
  std::vector<Bytes> out;
  for (size_t k = 0; k < placed.size(); ++k)
    out.push_back(by_rank(placed[k].placement.computed, [&](const std::vector<int64_t>& shape) {
      return kinds.kinds[k].packed ? panel_bytes(shape, dtype_bytes(kinds.kinds[k].rollout_type(dtype, param_dtype))) : 0;
    }));
  return out;
}

}  // namespace

int64_t PlanOptions::sequence_rows() const {
  return max_response_length == 0 ? max_tokens_per_micro_batch
                                  : std::max<int64_t>(1, max_prompt_length + max_response_length - 1);
}

int64_t PlanOptions::sequences() const { return std::max<int64_t>(1, max_tokens_per_micro_batch / sequence_rows()); }

int64_t PlanOptions::head_rows() const {
  return max_response_length == 0 ? tokens() : sequences() * std::min(sequence_rows(), max_response_length);
}

int64_t MemoryPlan::total(int64_t rank) const {
  int64_t sum = 0;
  for (const MemoryKind& k : kinds) sum += k.bytes[static_cast<size_t>(rank)];
  return sum;
}

int64_t MemoryPlan::peak() const {
  int64_t most = 0;
  for (size_t r = 0; !kinds.empty() && r < kinds[0].bytes.size(); ++r) most = std::max(most, total(static_cast<int64_t>(r)));
  return most;
}

int64_t MemoryPlan::of(const std::string& kind, int64_t rank) const {
  for (const MemoryKind& k : kinds)
    if (k.name == kind) return k.bytes[static_cast<size_t>(rank)];
  return 0;
}

std::vector<int64_t> gathered_bytes(const WeightKinds& kinds, const std::vector<PlacedKind>& placed, size_t group,
                                    DType param_dtype) {
  Bytes out(placed[0].computed.size(), 0);
  for (size_t k : kinds.groups[group])
    for (size_t r = 0; r < out.size(); ++r) out[r] += placed[k].computed[r] * width(kinds.kinds[k], param_dtype);
  return out;
}

MemoryPlan train_memory(const ParameterTable& table, const WeightKinds& kinds, const std::vector<PlacedKind>& placed,
                        const ParallelDims& dims, const PlanOptions& options) {
  const size_t ranks = static_cast<size_t>(dims.world());
  const DType dtype = options.param_dtype;
  const auto kept = [&](size_t k, size_t r) { return placed[k].kept[r]; };
  const Bytes own = sum_over(kinds, ranks, kept);
  const auto times = [&](int64_t n) {
    Bytes out = own;
    for (int64_t& b : out) b *= n;
    return out;
  };
  MemoryPlan plan;
  const auto add = [&](const char* name, const char* what, Bytes bytes) { plan.kinds.push_back({name, what, std::move(bytes)}); };
  add("weights", "fp32 masters", times(4));
  if (dtype == DType::kBF16)
    add("rounded_weights", "bf16 copies of projections, experts, embeddings and head",
        sum_over(kinds, ranks, [&](size_t k, size_t r) { return kinds.kinds[k].rounded ? 2 * kept(k, r) : 0; }));
  add("gradients", "fp32", times(4));
  add("optimizer", "AdamW's two fp32 moments", times(8));

  const std::vector<Bytes> panels = panels_by_rank(kinds, placed, dtype, dtype);
  if (ranks == 1) {  // nothing is sharded: forwards read the weights, and their panels stay until the next update
    add("packed_panels", "weights as the CPU's products read them",
        sum_over(kinds, ranks, [&](size_t k, size_t r) { return panels[k][r]; }));
  } else {
    std::map<std::vector<size_t>, Bytes> gathered, staging, full, packed;
    add("gathered_groups", "the outermost group and two layers",
        root_and_pair(over_groups(kinds, ranks, gathered,
                                  [&](size_t k, size_t r) { return placed[k].computed[r] * width(kinds.kinds[k], dtype); }),
                      ranks));
    const auto staged = over_groups(kinds, ranks, staging,
                                    [&](size_t k, size_t r) { return placed[k].staged[r] * width(kinds.kinds[k], dtype); });
    add("gather_staging", "of what is not cut along its first dim, while it arrives", largest(staged, 0, ranks));
    // One layer's gradients are added while those of the layer behind it are in reduction, to a part of its own.
    const auto whole = over_groups(kinds, ranks, full, [&](size_t k, size_t r) { return placed[k].computed[r] * 4; });
    Bytes gradients = root_and_pair(whole, ranks);
    std::map<std::vector<size_t>, Bytes> parts;
    const auto reduced = over_groups(kinds, ranks, parts, [&](size_t k, size_t r) { return placed[k].kept[r] * 4; });
    const Bytes part = largest(reduced, 0, ranks);
    for (size_t r = 0; r < ranks; ++r) gradients[r] += part[r];
    add("full_gradients", "fp32: the outermost group, a layer, one more in reduction", std::move(gradients));
    const auto packs = over_groups(kinds, ranks, packed, [&](size_t k, size_t r) { return panels[k][r]; });
    Bytes most = largest(packs, 1, ranks);
    for (size_t r = 0; r < ranks; ++r) most[r] += (*packs[0])[r];
    add("packed_panels", "the head's and a layer's weights as the CPU's products read them", std::move(most));
  }
  Bytes activations(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    if (r >= static_cast<size_t>(dims.cp * dims.tp)) {  // the same in every place of (replicate, fsdp)
      activations[r] = activations[r - static_cast<size_t>(dims.cp * dims.tp)];
      continue;
    }
    const ActivationSizes sizes =
        activation_sizes(table, dims, options, even_micro_batch(dims, options), static_cast<int64_t>(r));
    activations[r] = activation_bytes(table, options, sizes).peak;
  }
  add("activations", "of one micro-batch at the fullest moment of its backward", std::move(activations));
  return plan;
}

int64_t kv_elements(const ParameterTable& table, const ParallelDims& dims) {
  if (table.latent) return table.latent->kv_lora_rank + table.latent->qk_rope_head_dim;  // the latent, on every rank of tp
  return 2 * std::max<int64_t>(1, table.config.num_kv_heads / dims.tp) * table.config.head_dim;
}

MemoryPlan rollout_memory(const ParameterTable& table, const WeightKinds& kinds, const std::vector<PlacedKind>& placed,
                          const ParallelDims& dims, const PlanOptions& options) {
  const size_t ranks = static_cast<size_t>(dims.world());
  const DType dtype = options.rollout_float();
  const auto kept = [&](size_t k) { return kinds.kinds[k].rollout_type(options.rollout_dtype, options.param_dtype); };
  std::vector<Bytes> scales;
  for (size_t k = 0; k < placed.size(); ++k)
    scales.push_back(by_rank(placed[k].placement.computed, [&](const std::vector<int64_t>& shape) {
      return kept(k) == DType::kI8 ? num_rows(shape) * dtype_bytes(DType::kF32) : 0;
    }));
  MemoryPlan plan;
  plan.kinds.push_back(
      {"weights",
       options.rollout_dtype == DType::kI8
           ? "int8 and a scale a row; embeddings and head in the trainer's dtype; router, norms and biases fp32"
           : "in the rollout's dtype; router, norms and biases fp32",
       sum_over(kinds, ranks, [&](size_t k, size_t r) { return placed[k].computed[r] * dtype_bytes(kept(k)) + scales[k][r]; })});
  if (options.apart)
    plan.kinds.push_back(
        {"refit_weights", "a second set while a refit arrives; none with refit.mode = \"in_place\"", plan.kinds[0].bytes});
  const std::vector<Bytes> panels = panels_by_rank(kinds, placed, options.rollout_dtype, options.param_dtype);
  plan.kinds.push_back({"packed_panels", "weights as the CPU's products read them",
                        sum_over(kinds, ranks, [&](size_t k, size_t r) { return panels[k][r]; })});
  const int64_t blocks = (options.kv_cache_tokens + options.block_size - 1) / options.block_size;
  plan.kinds.push_back(
      {"kv_blocks",
       table.latent ? "latents of keys and values, the same on every rank of tp" : "keys and values of this rank's heads",
       Bytes(ranks, blocks * options.block_size * kv_elements(table, dims) * dtype_bytes(dtype) * table.config.num_layers)});
  return plan;
}

std::vector<int64_t> shared_weights(const WeightKinds& kinds, const std::vector<PlacedKind>& train,
                                    const std::vector<PlacedKind>& rollout, const PlanOptions& options) {
  Bytes out(options.apart ? 0 : std::min(train[0].kept.size(), rollout[0].kept.size()), 0);
  for (size_t k = 0; k < kinds.kinds.size(); ++k) {
    const WeightKind& kind = kinds.kinds[k];
    const DType type = kind.rollout_type(options.rollout_dtype, options.param_dtype);
    if (kind.rounded && options.param_dtype != type) continue;
    for (size_t r = 0; r < out.size(); ++r) {
      const int64_t n = rollout[k].computed[r], rank = static_cast<int64_t>(r);
      if (n > 0 && train[k].kept[r] == n && train[k].placement.layout.boxes(rank) == rollout[k].placement.computed.boxes(rank))
        out[r] += n * dtype_bytes(type) * kind.count;
    }
  }
  return out;
}

}  // namespace weft
