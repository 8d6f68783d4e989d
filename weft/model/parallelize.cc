#include "weft/model/parallelize.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/parallel/fully_shard.h"

namespace weft {

ShardingPlan sharding_table(const ModelConfig& c, bool sequence_parallel) {
  ShardingPlan plan{
      cut("model.embed_tokens.weight", "tp", 0, Shares::kVocabulary),
      replicated("model.norm.weight", "tp"),
      cut("*.q_proj.*", "tp", 0, Shares::kContraction, c.num_heads),
      cut("*.k_proj.*", "tp", 0, Shares::kHeads, c.num_kv_heads),
      cut("*.v_proj.*", "tp", 0, Shares::kHeads, c.num_kv_heads),
      cut("*.o_proj.weight", "tp", 1, Shares::kContraction, c.num_heads),
  };
  const auto add = [&plan](PlanEntry e) { plan.push_back(std::move(e)); };
  const auto add_on_slices = [&](const char* pattern) { add(sequence_parallel ? replicated_partial(pattern, "tp") : replicated(pattern, "tp")); };
  add_on_slices("*layernorm.weight");
  if (!c.tied) add(cut("lm_head.weight", "tp", 0, Shares::kVocabulary));
  if (c.o_bias) add_on_slices("*.o_proj.bias");
  if (c.qk_norm) {  // each rank norms its own heads
    add(replicated_partial("*.q_norm.weight", "tp"));
    add(replicated_partial("*.k_norm.weight", "tp"));
  }
  const size_t sparse = static_cast<size_t>(std::count(c.moe_layers.begin(), c.moe_layers.end(), true));
  if (sparse < c.moe_layers.size()) {
    add(cut("*.mlp.gate_proj.*", "tp", 0, Shares::kContraction));
    add(cut("*.mlp.up_proj.*", "tp", 0, Shares::kContraction));
    add(cut("*.mlp.down_proj.weight", "tp", 1, Shares::kContraction));
    if (c.mlp_bias) add_on_slices("*.mlp.down_proj.bias");
  }
  if (sparse > 0) {
    add_on_slices("*.mlp.gate.weight");
    add(cut("*.experts.gate_up_proj", "ep", 0));
    add(cut("*.experts.down_proj", "ep", 0));
  }
  if (c.over_encoding) {
    add(cut("*.over_encoded_embeddings.embedding_list.*", "oe", 0));
    add(replicated("*.over_encoded_embeddings.projection_list.*", "tp"));
  }
  return plan;
}

std::vector<std::string> own_axes(const ModelConfig& c) { return c.over_encoding ? std::vector<std::string>{"oe"} : std::vector<std::string>{}; }

void check_mesh(const ModelConfig& config, const ParallelDims& dims) {
  const std::vector<std::string> own = own_axes(config);
  for (const std::string& axis : own)
    if (std::none_of(dims.own.begin(), dims.own.end(), [&](const auto& o) { return o.first == axis; }))
      throw UsageError(fmt::format("mesh {}: read it with the model's own axis \"{}\"", dims.to_string(), axis));
  for (const auto& [axis, size] : dims.own)
    if (size > 1 && std::find(own.begin(), own.end(), axis) == own.end())
      throw UsageError(fmt::format("mesh {}: {} has no axis \"{}\"{}", dims.to_string(), config.family, axis,
                                   axis == "oe" ? ", which cuts over-encoded embeddings" : ""));
}

void parallelize(CausalLM& model, std::shared_ptr<const RankMesh> mesh) {
  FullyShardOptions options;
  options.plan = sharding_table(model.config(), mesh->sharing.sequence_parallel);
  check_mesh(model.config(), mesh->dims);
  std::vector<std::string> names;
  for (const nn::Parameter* p : model.parameters()) names.push_back(p->name());
  check_plan(options.plan, mesh->dims, names);
  for (nn::Module* layer : model.children()) fully_shard(*layer, mesh, options);
  fully_shard(model, mesh, options);
  model.set_mesh(std::move(mesh));
}

}  // namespace weft
