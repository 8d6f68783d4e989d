#include "weft/model/parameter_table.h"

#include "weft/base/error.h"
#include "weft/model/causal_lm.h"
#include "weft/model/parallelize.h"

namespace weft {
namespace {

// Refuses what would not fit 2^60 parameters before anything multiplies in 64 bits: sizes of a config are below 2^31 each.
void check_sizes(const HfConfig& hf) {
  using Wide = unsigned __int128;
  const auto wide = [](int64_t n) { return static_cast<Wide>(n); };
  const Wide hidden = wide(hf.hidden_size), layers = wide(hf.num_hidden_layers), heads = wide(hf.num_attention_heads);
  const Wide parts[] = {wide(hf.vocab_size) * hidden, layers * hidden * wide(hf.intermediate_size),
                        layers * hidden * wide(hf.head_dim) * heads,
                        layers * wide(hf.num_experts) * wide(hf.moe_intermediate_size) * hidden};
  const char* keys[] = {"vocab_size", "intermediate_size", "num_attention_heads", "num_experts"};
  for (size_t i = 0; i < std::size(parts); ++i)
    if (parts[i] > Wide{1} << 56) throw FileError(hf.path, keys[i], "more parameters than any machine holds");
}

}  // namespace

int64_t TableRow::numel() const {
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  return n;
}

int64_t ParameterTable::num_parameters() const {
  int64_t n = 0;
  for (const TableRow& row : rows) n += row.numel();
  return n;
}

int64_t ParameterTable::active_parameters() const {
  int64_t n = 0;
  for (const TableRow& row : rows) {
    const bool routed = row.name.find(".experts.") != std::string::npos;
    n += routed ? row.numel() / row.shape[0] * config.moe.top_k : row.numel();
  }
  return n;
}

ParameterTable parameter_table(const HfConfig& hf, bool sequence_parallel, const std::vector<Family>& extra) {
  check_sizes(hf);
  const bool registered = std::any_of(extra.begin(), extra.end(), [&](const Family& f) { return f.model_type == hf.model_type; });
  if (has_latent_attention(hf) && !registered) return latent_table(hf, sequence_parallel);
  ParameterTable table;
  table.config = configure_model(hf, extra);
  const CausalLM model(table.config, at::kFloat);
  std::map<const nn::Parameter*, int64_t> layer_of;
  for (size_t i = 0; i < model.children().size(); ++i)
    for (const nn::Parameter* p : model.children()[i]->parameters()) layer_of[p] = static_cast<int64_t>(i);
  for (const nn::Parameter* p : model.parameters()) {
    const auto layer = layer_of.find(p);
    table.rows.push_back(
        {p->name(), p->shape(), p->precision() == nn::Precision::kParamDtype, layer == layer_of.end() ? -1 : layer->second});
  }
  table.plan = sharding_table(table.config, sequence_parallel);
  table.own_axes = own_axes(table.config);
  return table;
}

}  // namespace weft
