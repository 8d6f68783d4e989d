#include "weft/model/weight_map.h"

#include <fmt/format.h>

#include "weft/model/causal_lm.h"

namespace weft {
namespace {

// "model.layers.3.mlp.gate.weight" -> the entries of its MoE block; others map one to one.
void add_moe(const ModelConfig& c, int64_t layer, std::vector<WeightEntry>& out) {
  const MoeConfig& m = c.moe;
  const int64_t h = c.hidden_size, i = m.intermediate_size;
  const std::string memory = fmt::format("model.layers.{}.mlp", layer), disk = fmt::format("model.layers.{}.{}", layer, m.block);
  out.push_back({disk + ".gate.weight", {m.num_experts, h}, memory + ".gate.weight", {{0, 0}, {m.num_experts, h}}});
  for (int64_t e = 0; e < m.num_experts; ++e) {
    const std::string expert = fmt::format("{}.experts.{}.", disk, e);
    out.push_back({expert + m.gate + ".weight", {i, h}, memory + ".experts.gate_up_proj", {{e, 0, 0}, {1, i, h}}});
    out.push_back({expert + m.up + ".weight", {i, h}, memory + ".experts.gate_up_proj", {{e, i, 0}, {1, i, h}}});
    out.push_back({expert + m.down + ".weight", {h, i}, memory + ".experts.down_proj", {{e, 0, 0}, {1, h, i}}});
  }
}

}  // namespace

std::vector<WeightEntry> weight_map(const ModelConfig& config) {
  // The module tree knows every name and shape; it is built without memory.
  const CausalLM model(config, at::kFloat);
  std::vector<WeightEntry> out;
  for (const nn::Parameter* p : model.parameters()) {
    const std::string& name = p->name();
    const size_t experts = name.find(".mlp.experts.");
    if (experts != std::string::npos) continue;
    const size_t router = name.find(".mlp.gate.weight");
    if (router != std::string::npos) {
      add_moe(config, std::stoll(name.substr(sizeof("model.layers.") - 1)), out);
      continue;
    }
    out.push_back({name, p->shape(), name, {std::vector<int64_t>(p->shape().size(), 0), p->shape()}});
  }
  return out;
}

WeightEntry tied_head(const ModelConfig& c) {
  return {"lm_head.weight", {c.vocab_size, c.hidden_size}, "model.embed_tokens.weight", {{0, 0}, {c.vocab_size, c.hidden_size}}};
}

}  // namespace weft
