#include "weft/model/parallelize.h"

#include <fmt/ranges.h>
#include <algorithm>

#include <map>
#include <set>

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
  const auto add_on_slices = [&](const char* pattern) {
    add(sequence_parallel ? replicated_partial(pattern, "tp") : replicated(pattern, "tp"));
  };
  add_on_slices("*layernorm.weight");
  if (c.score_head)
    add(replicated("score.weight", "tp"));
  else if (!c.tied)
    add(cut("lm_head.weight", "tp", 0, Shares::kVocabulary));
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

std::vector<std::string> own_axes(const ModelConfig& c) {
  return c.over_encoding ? std::vector<std::string>{"oe"} : std::vector<std::string>{};
}

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

namespace {

// What is placed as a whole on an axis: attention (of all layers, which share one shape), a dense MLP, a layer's experts; any
// other parameter by itself.
std::string block_of(const std::string& name, const std::string& axis) {
  const auto up_to = [&](const char* part) { return name.substr(0, name.find(part) + std::string_view(part).size() - 1); };
  if (axis == "tp" && name.find(".self_attn.") != std::string::npos) return "self_attn";
  for (const char* part : {".mlp.gate_proj.", ".mlp.up_proj.", ".mlp.down_proj."})
    if (axis == "tp" && name.find(part) != std::string::npos) return up_to(".mlp.");
  if (axis == "ep" && name.find(".experts.") != std::string::npos) return up_to(".experts.");
  return name;
}

bool may_be_whole(const std::string& block, const std::string& axis) {
  if (axis != "tp") return true;
  return block == "self_attn" || block.ends_with(".mlp") || block == "model.embed_tokens.weight" || block == "lm_head.weight";
}

bool same_placement(const PlanEntry& a, const PlanEntry& b) {
  return a.kind == b.kind && (a.kind != PlanEntry::Kind::kCut || a.dim == b.dim);
}

}  // namespace

ShardingPlan plan_of(const ModelConfig& config, const ParallelDims& dims, bool sequence_parallel,
                     const std::vector<std::string>& entries, const std::vector<const nn::Parameter*>& parameters) {
  const ShardingPlan table = sharding_table(config, sequence_parallel);
  ShardingPlan asked = table, plan = table;
  for (const std::string& text : entries) {
    asked.push_back(parse_plan_entry(text));
    if (asked.back().axis == "fsdp") plan.push_back(asked.back());
  }
  std::vector<std::string> names;
  for (const nn::Parameter* p : parameters) names.push_back(p->name());
  check_plan(asked, dims, names);
  for (size_t i = table.size(); i < asked.size(); ++i) {
    const PlanEntry& e = asked[i];
    const auto has = [&](const std::string& n) { return matches(e.pattern, n) && find_entry(table, e.axis, n); };
    if (e.axis == "fsdp" || std::any_of(names.begin(), names.end(), has)) continue;
    std::set<std::string> patterns;
    for (const PlanEntry& t : table)
      if (t.axis == e.axis) patterns.insert(t.pattern);
    throw UsageError(fmt::format("plan entry {} ({}): {} takes no part in what it matches; it does in {}", e.pattern, describe(e),
                                 e.axis,
                                 patterns.empty() ? "nothing of this model" : fmt::format("{}", fmt::join(patterns, ", "))));
  }
  // Of each block and axis: the members that are as in the table, and the others.
  std::map<std::pair<std::string, std::string>, std::pair<std::vector<std::string>, std::vector<std::string>>> blocks;
  for (const std::string& name : names)
    for (const PlanEntry& e : table) {
      const PlanEntry *ours = find_entry(asked, e.axis, name), *theirs = find_entry(table, e.axis, name);
      if (theirs != &e) continue;  // once an axis
      auto& [kept, changed] = blocks[{block_of(name, e.axis), e.axis}];
      const PlanEntry::Kind whole = e.axis == "tp" ? PlanEntry::Kind::kReplicated : PlanEntry::Kind::kReplicatedPartial;
      if (same_placement(*ours, e)) {
        if (e.kind != whole) kept.push_back(name);  // in both states the same: says nothing
        continue;
      }
      if (ours->kind != whole || !may_be_whole(block_of(name, e.axis), e.axis)) {
        const std::string other = may_be_whole(block_of(name, e.axis), e.axis)
                                      ? fmt::format(", or {} with its block", describe({"", e.axis, whole}))
                                      : "";
        throw UsageError(fmt::format("plan entry {} ({}): {} is {}{}", ours->pattern, describe(*ours), name, describe(e), other));
      }
      changed.push_back(name);
      plan.push_back({name, e.axis, whole});
    }
  for (const auto& [key, members] : blocks)
    if (!members.first.empty() && !members.second.empty())
      throw UsageError(fmt::format("the plan has {} whole on {} and {} not: {} is placed as one", members.second[0], key.second,
                                   members.first[0], key.first));
  return plan;
}

Layout rollout_layout(const ModelConfig& config, const ParallelDims& dims, const nn::Parameter& p) {
  return place_parameter(sharding_table(config), dims, p.name(), p.shape()).computed;
}

void place_for_rollout(CausalLM& model, std::shared_ptr<const RankMesh> mesh) {
  check_mesh(model.config(), mesh->dims);
  for (nn::Parameter* p : model.parameters()) p->cut(rollout_layout(model.config(), mesh->dims, *p).local_shape(mesh->rank()));
  model.set_mesh(std::move(mesh));
}

void parallelize(CausalLM& model, std::shared_ptr<const RankMesh> mesh, const std::vector<std::string>& entries) {
  FullyShardOptions options;
  check_mesh(model.config(), mesh->dims);
  const std::vector<nn::Parameter*> all = model.parameters();
  options.plan = plan_of(model.config(), mesh->dims, mesh->sharing.sequence_parallel, entries, {all.begin(), all.end()});
  for (nn::Module* layer : model.children()) fully_shard(*layer, mesh, options);
  fully_shard(model, mesh, options);
  model.set_mesh(std::move(mesh));
}

}  // namespace weft
