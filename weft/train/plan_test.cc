// Plans in closed form, of hostile configs, of the models of the field, and of worlds of a thousand ranks.
#include "weft/train/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <numeric>

#include "weft/base/error.h"
#include "weft/io/atomic_file.h"
#include "weft/rollout/kv_cache.h"
#include "weft/train/plan_kinds.h"
#include "weft/train/plan_memory.h"
#include "weft/train/plan_neighbours.h"
#include "weft/train/test_mesh_oracle.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

HfConfig config_file(const std::string& name) {
  const std::string path = std::string(WEFT_SOURCE_DIR) + "/tests/data/configs/" + name + ".json";
  return HfConfig::parse(read_text_file(path), path);
}

// A dense model: hidden 16, 4 heads of 4, 2 key/value heads, width 24, vocabulary 32, 2 layers.
std::string small_model(const std::string& more = "") {
  return R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "tie_word_embeddings": false,
    "hidden_act": "silu", "vocab_size": 32, "intermediate_size": 24, "num_hidden_layers": 2)" +
         more + "}";
}

TEST(PlanTable, TotalsOfTheFieldsModels) {
  // Parameters, and those that one token's forward reads, as the models' papers round them.
  const struct {
    const char* name;
    int64_t total, active;
  } models[] = {{"deepseek-v3-671b", 671026419200, 37552297472},  // "671B, 37B activated", arXiv:2412.19437
                {"kimi-k2-1t", 1026408232448, 32861500928},       // "1.04T, 32B activated", arXiv:2507.20534
                {"mixtral-8x7b", 46702792704, 12879925248},       // 46.7B, 12.9B
                {"qwen3-30b-a3b", 30532122624, 3353032704},       // 30.5B, 3.3B
                {"qwen3-235b-a22b", 235093634560, 22190763520},   // 235B, 22B
                {"qwen3-0.6b", 596049920, 596049920}};
  for (const auto& m : models) {
    const ParameterTable t = parameter_table(config_file(m.name));
    EXPECT_EQ(t.num_parameters(), m.total) << m.name;
    EXPECT_EQ(t.active_parameters(), m.active) << m.name;
  }
}

TEST(PlanTable, LatentAttentionInClosedForm) {
  const ParameterTable t = parameter_table(config_file("deepseek-v3-671b"));
  EXPECT_FALSE(t.runs);
  const int64_t hidden = 7168,
                attention = 1536 * hidden + 1536 + 128 * 192 * 1536 + 576 * hidden + 512 + 128 * 256 * 512 + hidden * 128 * 128;
  const int64_t dense = 3 * 18432 * hidden, expert = 3 * 2048 * hidden, moe = 256 * hidden + 256 + 257 * expert;
  EXPECT_EQ(t.num_parameters(), 61 * (attention + 2 * hidden) + 3 * dense + 58 * moe + 2 * 129280 * hidden + hidden);
  // Every parameter has its entry: no mesh of tp and ep misses one.
  EXPECT_NO_THROW(check_kinds(t, kinds_of(t), parse_parallel_dims("fsdp=4,tp=8,ep=32")));
  std::vector<std::string> names;
  for (const TableRow& row : t.rows) names.push_back(row.name);
  EXPECT_NO_THROW(check_plan(t.plan, ParallelDims{}, names));  // and no entry matches nothing
}

TEST(Plan, MemoryInClosedForm) {
  PlanOptions o;
  o.max_tokens_per_micro_batch = 8, o.kv_cache_tokens = 30;
  const Plan p = make_plan(HfConfig::parse(small_model(), "config.json"), "fsdp=2", "dp=1,tp=2", o);
  const int64_t norms = 2 * 2 * 16 + 16, layer = 16 * 16 + 2 * 8 * 16 + 16 * 16 + 3 * 24 * 16, table = 32 * 16;
  const int64_t rounded = 2 * layer + 2 * table;
  EXPECT_EQ(p.table.num_parameters(), rounded + norms);
  for (int64_t r = 0; r < 2; ++r) {
    EXPECT_EQ(p.train_memory.of("weights", r), (rounded + norms) / 2 * 4);
    EXPECT_EQ(p.train_memory.of("rounded_weights", r), rounded / 2 * 2);
    EXPECT_EQ(p.train_memory.of("gradients", r), (rounded + norms) / 2 * 4);
    EXPECT_EQ(p.train_memory.of("optimizer", r), (rounded + norms) / 2 * 8);
    // The tables and the last norm, then both layers.
    EXPECT_EQ(p.train_memory.of("gathered_groups", r), 2 * table * 2 + 16 * 4 + 2 * (layer * 2 + 2 * 16 * 4));
    EXPECT_EQ(p.rollout_memory.of("weights", r), rounded / 2 * 2 + norms * 4);
    // 30 tokens are two blocks of 16: of one key/value head of 4, in bf16, in two layers.
    EXPECT_EQ(p.rollout_memory.of("kv_blocks", r), 32 * 2 * 4 * 2 * 2);
    EXPECT_EQ(p.rollout_memory.of("kv_blocks", r), KvCache({1, 4, 16, DType::kBF16}, 2, 2).bytes());
  }
  // Both roles' ranks are the same: of its half of each tensor a rank has, over fsdp's dim 0, what tp's dim 0 keeps.
  EXPECT_EQ(p.job_ranks(), 2);
  EXPECT_TRUE(p.refit.listed);
  // What does not come from the rank itself: of o_proj and down_proj, cut along dim 1, half of its half; of the norms the other
  // half. The first cut of all others is the same.
  const int64_t columns = 2 * (16 * 16 + 16 * 24);
  for (int64_t r = 0; r < 2; ++r) {
    EXPECT_EQ(p.refit.load.received.at(r), columns / 4 * 2 + norms / 2 * 4);
    EXPECT_EQ(p.refit.load.sent.at(r), columns / 4 * 2 + norms / 2 * 4);
    EXPECT_EQ(p.refit.load.needed.at(r), p.rollout_memory.of("weights", r));
  }
  o.apart = true;
  const Plan apart = make_plan(HfConfig::parse(small_model(), "config.json"), "fsdp=2", "dp=1,tp=2", o);
  EXPECT_EQ(apart.job_ranks(), 4);
  for (int64_t r = 2; r < 4; ++r) EXPECT_EQ(apart.refit.load.received.at(r), apart.rollout_memory.of("weights", r - 2));
}

TEST(Plan, EveryElementOfEveryRankIsSomewhere) {
  const HfConfig hf = HfConfig::parse(testing::oracle_model("moe"), "config.json");
  for (const char* mesh : {"fsdp=1", "fsdp=3", "replicate=2,fsdp=2,tp=2,ep=4", "cp=2,tp=4,ep=8"}) {
    const ParameterTable t = parameter_table(hf);
    const WeightKinds kinds = kinds_of(t);
    const ParallelDims dims = parse_parallel_dims(mesh);
    const std::vector<PlacedKind> placed = place_kinds(t, kinds, dims);
    size_t members = 0;
    for (const auto& group : kinds.groups) members += group.size();
    EXPECT_EQ(members, t.rows.size());
    for (size_t k = 0; k < placed.size(); ++k)
      for (int64_t r = 0; r < dims.world(); ++r) {
        EXPECT_EQ(placed[k].kept[static_cast<size_t>(r)], placed[k].placement.layout.numel(r)) << kinds.kinds[k].name;
        EXPECT_EQ(placed[k].computed[static_cast<size_t>(r)], placed[k].placement.computed.numel(r)) << kinds.kinds[k].name;
      }
  }
}

TEST(Plan, TheRefitOfAllTensorsIsTheirKinds) {
  const HfConfig hf = HfConfig::parse(testing::oracle_model("moe"), "config.json");
  const ParameterTable t = parameter_table(hf);
  const ParallelDims train = parse_parallel_dims("fsdp=2,tp=2,ep=4"), rollout = parse_rollout_dims("dp=2,tp=4,ep=2");
  const PlannedRefitTensors all = planned_refit_tensors(t, train, rollout, DType::kBF16, true, false),
                            kinds = planned_refit_tensors(t, train, rollout, DType::kBF16, true, true);
  ASSERT_EQ(all.tensors.size(), t.rows.size());
  for (size_t i = 0; i < t.rows.size(); ++i) {
    EXPECT_EQ(all.tensors[i].name, t.rows[i].name);
    int64_t elements = 0;
    for (const HolderSet& set : all.tensors[i].from)
      for (const LocalBox& b : set.boxes) elements += b.box.numel();
    EXPECT_EQ(elements, t.rows[i].numel()) << t.rows[i].name;
  }
  EXPECT_EQ(std::accumulate(kinds.counts.begin(), kinds.counts.end(), int64_t{0}), static_cast<int64_t>(t.rows.size()));
  const RefitPlan plan = plan_refit(all.tensors);
  EXPECT_EQ(refit_load(kinds.tensors, kinds.counts).received, plan.received);
}

TEST(Plan, AThousandRanksInSeconds) {
  const auto seconds = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double before = seconds();
  for (const char* name : {"deepseek-v3-671b", "kimi-k2-1t"}) {
    PlanOptions o;
    o.memory_gb = 80, o.recompute = true, o.max_tokens_per_micro_batch = 4096;
    const Plan p = make_plan(config_file(name), "fsdp=1024,ep=64", "dp=64,tp=8,ep=64", o);
    EXPECT_FALSE(p.refit.listed);
    int64_t kept = 0;
    for (int64_t r = 0; r < 1024; ++r) kept += p.train_memory.of("weights", r);
    EXPECT_EQ(kept, 4 * p.table.num_parameters()) << name;  // fsdp holds everything once
    // Each rank gets what it keeps, less what it had.
    EXPECT_LE(p.refit.max_received, p.refit.max_needed);
    double flows = 0;
    for (const std::vector<double>& row : p.refit.flows) flows = std::accumulate(row.begin(), row.end(), flows);
    EXPECT_NEAR(flows, static_cast<double>(p.refit.total_received), 1e-6 * flows);
    int64_t sent = 0;
    for (const auto& [rank, bytes] : p.refit.load.sent) sent += bytes;
    EXPECT_EQ(sent, p.refit.total_received);
    EXPECT_GT(plan_text(p).size(), 2000u);
    EXPECT_GT(plan_json(p).size(), 2000u);
    EXPECT_THAT(plan_html(p), AllOf(HasSubstr("<svg"), HasSubstr("</html>")));
  }
  EXPECT_LT(seconds() - before, 10);  // 0.6 measured; sanitizers take ten times that
}

TEST(Plan, MeshesThatDoNotFitNameThoseThatDo) {
  const HfConfig hf = config_file("qwen3-30b-a3b");  // 32 heads, 4 key/value heads
  const auto refused = [&](const std::string& train, const std::string& rollout, const std::vector<std::string>& parts) {
    for (const std::string& part : parts)
      EXPECT_THAT([&] { (void)make_plan(hf, train, rollout, {}); }, ThrowsMessage<UsageError>(HasSubstr(part)))
          << train << rollout;
  };
  refused("fsdp=2,tp=16", "dp=1",
          {"--train fsdp=2,tp=16", "tp can be 1, 2, 4 or 8", "the nearest meshes that work: fsdp=4,tp=8"});
  refused("fsdp=2", "dp=2,tp=3", {"--rollout dp=2,tp=3", "nearest meshes that work: dp="});
  refused("fsdp=8,ep=3", "dp=1", {"ep can be 1, 2, 4, 8", "the nearest meshes that work: fsdp=8,ep=2 or fsdp=9,ep=3"});
  refused("fsdp=2", "dp=6,tp=2,ep=8", {"ep=8 takes its ranks from dp=6 x tp=2", "that work: dp=6,tp=2,ep=4 or dp=8,tp=2,ep=8"});
  refused("fsdp=8,ep=x", "dp=1", {"the size 'x' of ep is no number"});
  refused("fsdp=0", "dp=1", {"sizes are 1 or more"});
  refused("fsdp=2", "fsdp=2", {"unknown axis 'fsdp'"});
  refused("fsdp=100000", "dp=1", {"a plan has at most 16384"});
  refused("", "dp=2,oe=2", {"unknown axis 'oe'"});
  // What is named works.
  for (const ParallelDims& d :
       nearest_meshes(parse_parallel_dims("fsdp=2,tp=16"), false, 128, true, 4, 64, [&](const ParallelDims& m) {
         try {
           (void)make_plan(hf, m.to_string(), "dp=1", {});
           return true;
         } catch (const UsageError&) {
           return false;
         }
       }))
    EXPECT_EQ(d.world(), 32) << d.to_string();
}

TEST(Plan, WhatDoesNotFitIsSaidWithMeshesThatDo) {
  PlanOptions o;
  o.memory_gb = 64, o.max_tokens_per_micro_batch = 2048, o.recompute = true;
  const Plan p = make_plan(config_file("qwen3-30b-a3b"), "fsdp=4,ep=4", "dp=4,tp=1,ep=4", o);
  ASSERT_FALSE(p.misfits.empty());
  EXPECT_THAT(p.misfits[0], AllOf(HasSubstr("the trainer needs"), HasSubstr("the nearest meshes that fit: fsdp=16,ep=4")));
  o.apart = true;
  const Plan wider = make_plan(config_file("qwen3-30b-a3b"), "fsdp=16,ep=8", "dp=16,ep=8", o);
  EXPECT_TRUE(wider.misfits.empty()) << wider.misfits[0];
  EXPECT_THAT(plan_text(wider), HasSubstr("everything fits"));
}

TEST(Plan, HostileConfigsAreRefused) {
  const auto refused = [](const std::string& json, const std::string& part) {
    EXPECT_THAT([&] { (void)make_plan(HfConfig::parse(json, "config.json"), "fsdp=2", "dp=1", {}); },
                ThrowsMessage<FileError>(HasSubstr(part)))
        << json.substr(0, 200);
  };
  const auto with = [](std::string json, const std::string& from, const std::string& to) {
    const size_t at = json.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return json.replace(at, from.size(), to);
  };
  refused("{}", "model_type");
  refused("[", "config.json");
  refused(with(small_model(), R"("num_attention_heads": 4)", R"("num_attention_heads": 0)"), "num_attention_heads");
  refused(with(small_model(), R"("hidden_size": 16)", R"("hidden_size": -1)"), "hidden_size");
  refused(with(small_model(), R"("vocab_size": 32, )", ""), "vocab_size");
  refused(with(small_model(), R"("model_type": "llama")", R"("model_type": "nobody")"), "'nobody' is not supported");
  refused(with(small_model(), R"("num_hidden_layers": 2)", R"("num_hidden_layers": 99999999)"), "num_hidden_layers");
  std::string huge = with(small_model(), R"("hidden_size": 16)", R"("hidden_size": 1073741824)");
  refused(with(huge, R"("vocab_size": 32)", R"("vocab_size": 1073741824)"), "more parameters than any machine holds");
  std::string deepseek = config_file("deepseek-v3-671b").raw_json;
  refused(with(deepseek, R"("kv_lora_rank": 512,)", ""), "kv_lora_rank");
  refused(with(deepseek, R"("qk_head_dim": 192)", R"("qk_head_dim": 191)"), "qk_nope_head_dim + qk_rope_head_dim = 192");
  refused(with(deepseek, R"("num_experts_per_tok": 8)", R"("num_experts_per_tok": 800)"), "num_experts_per_tok");
  huge = with(deepseek, R"("num_attention_heads": 128)", R"("num_attention_heads": 1073741824)");
  huge = with(huge, R"("num_key_value_heads": 128)", R"("num_key_value_heads": 1073741824)");
  refused(with(huge, R"("v_head_dim": 128)", R"("v_head_dim": 1048576)"), "more parameters than any machine holds");
  // Queries without a rank are projected at once.
  const Plan p = make_plan(HfConfig::parse(with(deepseek, R"("q_lora_rank": 1536,)", R"("q_lora_rank": null,)"), "config.json"),
                           "fsdp=8,tp=2,ep=16", "dp=8,tp=4,ep=32", {});
  EXPECT_THAT(plan_text(p), HasSubstr("self_attn.q_proj.weight"));
}

TEST(Plan, OptionsAreHeldToTheirRanges) {
  const HfConfig hf = HfConfig::parse(small_model(), "config.json");
  const auto refused = [&](const std::function<void(PlanOptions&)>& change, const std::string& part) {
    PlanOptions o;
    change(o);
    EXPECT_THAT([&] { (void)make_plan(hf, "fsdp=2", "dp=1", o); }, ThrowsMessage<UsageError>(HasSubstr(part)));
  };
  refused([](PlanOptions& o) { o.max_tokens_per_micro_batch = 0; }, "0 tokens");
  refused([](PlanOptions& o) { o.max_tokens_per_micro_batch = int64_t{1} << 60; }, "tokens");
  refused([](PlanOptions& o) { o.micro_batches = 0; }, "micro-batches");
  refused([](PlanOptions& o) { o.block_size = 48; }, "divides 64");
  refused([](PlanOptions& o) { o.bandwidth_gb = 0; }, "bandwidth");
  refused([](PlanOptions& o) { o.axis_bandwidth_gb["nvlink"] = 400; }, "a bandwidth of \"nvlink\": there are replicate, fsdp");
  refused([](PlanOptions& o) { o.param_dtype = DType::kF16; }, "float32 or bfloat16");
}

TEST(Plan, LongerSequencesHaveMicroBatchesOfTheirOwn) {
  PlanOptions o;
  o.max_tokens_per_micro_batch = 100;
  EXPECT_EQ(o.tokens(), 100);
  EXPECT_EQ(o.head_rows(), 100);
  o.max_prompt_length = 11, o.max_response_length = 20;  // 30 fed tokens each
  EXPECT_EQ(o.sequences(), 3);
  EXPECT_EQ(o.tokens(), 90);
  EXPECT_EQ(o.head_rows(), 60);
  o.max_response_length = 200;
  EXPECT_EQ(o.tokens(), 210);
  EXPECT_EQ(o.head_rows(), 200);
}

}  // namespace
}  // namespace weft
